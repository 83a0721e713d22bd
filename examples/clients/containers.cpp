// Containers of the standard library in weir's host memory: weir/pmr.hpp.
#include <cstdio>
#include <memory_resource>
#include <string>
#include <unordered_map>
#include <weir/pmr.hpp>

int main() {
    weir::pmr_resource resource; // outlives its containers
    {
        std::pmr::unordered_map<std::pmr::string, int> lengths(&resource);
        for (int n = 0; n < 1000; n++) {
            std::pmr::string word(static_cast<std::size_t>(n), 'w', &resource);
            lengths[word] = n;
        }
        std::printf("%zu words, %llu bytes used\n", lengths.size(),
                    static_cast<unsigned long long>(resource.get_pool().stats().used_bytes));
    }
    std::printf("%llu bytes used at the end\n",
                static_cast<unsigned long long>(resource.get_pool().stats().used_bytes));
    return resource.get_pool().stats().used_bytes == 0 ? 0 : 1;
}
