// Static objects that go after weir's exit handlers, and after the driver: pools, and blocks of pools that are gone.
#include "../contents.h"
#include <weir/pool.hpp>

namespace {

struct last_words {
    ~last_words() {
        CHECK_STATUS(WEIR_OK, own_block.reset());
        CHECK_STATUS(WEIR_OK, default_block.reset());
        CHECK_STATUS(WEIR_OK, own.reset());
        CHECK_STATUS(WEIR_OK, of_device.reset());
        printf("static destructor: ");
        check_end();
    }

    weir::pool own, of_device;
    weir::buffer own_block, default_block;
};

weir::buffer left_to_its_destructor;
last_words words;
weir::unique_array<uint64_t> array_left_to_its_destructor;

} // namespace

int main() {
    program_begin();
    words.own = weir::pool(check_options(0));
    words.of_device = weir::pool::of_device(check_device());
    words.own_block = weir::buffer(words.own, 1000);
    words.default_block = weir::buffer(words.of_device, 1000);
    left_to_its_destructor = weir::buffer(words.own, 10 * MiB);
    array_left_to_its_destructor = weir::make_array<uint64_t>(words.of_device, 100);
    return program_end();
}
