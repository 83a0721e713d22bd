/* Thrust's CUDA system with weir's memory: vectors and temporary memory on streams that really run behind. */
#include "gpu.cuh"
#include <thrust/device_vector.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/tabulate.h>
#include <thread>
#include <vector>
#include <weir/thrust.hpp>

typedef unsigned long long word;
typedef weir::thrust_allocator<word> allocator;
typedef thrust::device_vector<word, allocator> vector;

static weir::pool pool_of(uint64_t max_bytes, const char *name) { return weir::pool::adopt(gpu_pool(max_bytes, name)); }

struct scattered {
    word seed;
    __host__ __device__ word operator()(word i) const { return (i + seed) * 0x9e3779b97f4a7c15ull; }
};

/* Sorted, and still the same values? */
template <typename Policy> static void check_sorted(Policy policy, const vector &words, word sum) {
    CHECK(thrust::is_sorted(policy, words.begin(), words.end()));
    CHECK_EQUAL(thrust::reduce(policy, words.begin(), words.end()), sum);
}

/* The allocator's stream is the default one, the policy's another that does not wait for it. The sort is only queued, behind
 * a kernel of `seconds`, when the call returns; work on the default stream must not get what it will use. */
template <typename Passed>
static void sort_queued_behind(const weir::pool &pool, Passed &&temporary, size_t count, double seconds) {
    cudaStream_t stream;
    running *kernel = host_visible<running>();
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    {
        vector words(count, allocator(pool, stream));
        auto now = thrust::cuda::par.on(stream);
        thrust::tabulate(now, words.begin(), words.end(), scattered{0});
        thrust::sort(thrust::cuda::par_nosync(temporary).on(stream), words.begin(), words.end()); /* loads its kernels */
        thrust::tabulate(now, words.begin(), words.end(), scattered{count});
        const word sum = thrust::reduce(now, words.begin(), words.end());
        const size_t before = pool.stats().allocations;
        if (seconds > 0) {
            queue_run(stream, seconds, kernel);
            wait_until_begun(kernel);
        }
        thrust::sort(thrust::cuda::par_nosync(temporary).on(stream), words.begin(), words.end());
        CHECK(pool.stats().allocations > before);
        CHECK(!kernel->over); /* or this shows nothing */
        void *other = NULL;
        CHECK_OK(weir_pool_alloc(pool.get(), count * sizeof(word), NULL, &other));
        CHECK(!kernel->over);
        queue_write(NULL, other, count * sizeof(word), 1);
        CUDA_OK(cudaStreamSynchronize(NULL));
        kernel->stop = 1;
        CUDA_OK(cudaStreamSynchronize(stream));
        check_sorted(now, words, sum);
        CHECK_OK(weir_pool_free(pool.get(), other, NULL));
    }
    CUDA_OK(cudaStreamSynchronize(stream));
    CUDA_OK(cudaStreamDestroy(stream));
    CUDA_OK(cudaFreeHost(kernel));
}

static void policies(double seconds) {
    weir_pool_options options = gpu_options(0, "policies");
    options.reuse_allow_internal_dependencies = 0; /* the default stream would wait for the kernel */
    const weir::pool pool(options);
    allocator lvalue(pool, NULL);
    weir::thrust_resource<> memory(pool, NULL);
    sort_queued_behind(pool, weir::thrust_allocator<char>(pool, NULL), 10000000, seconds);
    sort_queued_behind(pool, lvalue, 10000000, seconds);
    sort_queued_behind(pool, &memory, 10000000, seconds);
    CHECK_EQUAL(CHECK_STATS(pool.get()).used_bytes, 0);
}

/* Memory that its stream still reads goes to a vector of that stream, whose first fill must come after. */
static void vectors_in_stream_order(void) {
    const size_t bytes = 64 * MiB;
    const weir::pool pool = pool_of(0, "vectors"), room_for_one = pool_of(bytes + 16 * MiB, "one vector");
    findings *found = host_visible<findings>();
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    void *block = NULL;
    CHECK_OK(weir_pool_alloc(room_for_one.get(), bytes, stream, &block));
    queue_write(stream, block, bytes, 3);
    queue_run(stream, 0.2, NULL);
    queue_check(stream, block, bytes, 3, found);
    CHECK_OK(weir_pool_free(room_for_one.get(), block, stream));
    {
        vector words(bytes / sizeof(word), 5, allocator(room_for_one, stream));
        check_nothing_broken(found);
        CHECK_EQUAL(thrust::reduce(words.begin(), words.end()), 5 * words.size());

        thrust::host_vector<word> there = words;
        vector copy(there.begin(), there.end(), allocator(pool, stream)), other = copy;
        CHECK(copy == words && other == words);
        other.resize(2 * words.size(), 6);
        CHECK_EQUAL(thrust::reduce(other.begin(), other.end()), 11 * words.size());
        for (int n = 0; n < 1000; n++) {
            copy.push_back((word)n);
        }
        CHECK_EQUAL(copy.back(), 999);
        words.swap(copy);
        copy = std::move(other);
        CHECK_EQUAL(copy.size(), 2 * (words.size() - 1000));

        typedef thrust::mr::allocator<word, weir::thrust_resource<>> of_resource;
        weir::thrust_resource<> memory(pool);
        thrust::device_vector<word, of_resource> third(1000, 2, of_resource(&memory));
        CHECK_EQUAL(thrust::reduce(third.begin(), third.end()), 2000);
        vector by_default(10, 1);
        CHECK(by_default.get_allocator().get_pool() == weir::pool::of_device(0));
    }
    CUDA_OK(cudaStreamSynchronize(stream));
    CUDA_OK(cudaStreamDestroy(stream));
    check_nothing_broken(found);
    CUDA_OK(cudaFreeHost(found));
    CHECK_EQUAL(CHECK_STATS(pool.get()).used_bytes, 0);
    CHECK_EQUAL(CHECK_STATS(room_for_one.get()).used_bytes, 0);
}

static void errors(void) {
    const weir::pool pool = pool_of(64 * MiB, "little");
    allocator little(pool);
    int thrown = 0;
    try {
        vector large((size_t)1 << 27, little);
    } catch (const thrust::system::detail::bad_alloc &bad) {
        CHECK(strstr(bad.what(), "out of memory") != NULL);
        thrown++;
    }
    thrust::device_vector<word> words(16 * MiB);
    try {
        thrust::sort(thrust::cuda::par(little), words.begin(), words.end());
    } catch (const std::bad_alloc &) {
        thrown++;
    }
    CHECK_EQUAL(thrown, 2);
    CHECK_EQUAL(CHECK_STATS(pool.get()).used_bytes, 0);
    thrust::sequence(words.begin(), words.begin() + 100000);
    thrust::sort(thrust::cuda::par(little), words.begin(), words.begin() + 100000, thrust::greater<word>());
    CHECK_EQUAL(words[0], 99999);
    try {
        weir_pool_options host = gpu_options(0, "of the host");
        host.memory = WEIR_MEMORY_HOST;
        host.device = WEIR_DEVICE_HOST;
        allocator refused{weir::pool(host)};
    } catch (const weir::error &bad) {
        CHECK_STATUS(WEIR_ERROR_INVALID_ARGUMENT, bad.status());
        thrown++;
    }
    CHECK_EQUAL(thrown, 3);
}

static void threads(unsigned sorts) {
    const weir::pool pool = pool_of(0, "threads");
    std::vector<std::thread> all;
    for (unsigned t = 0; t < 4; t++) {
        all.emplace_back([&pool, t, sorts] {
            cudaStream_t stream;
            CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
            allocator mine(pool, stream);
            auto policy = thrust::cuda::par(mine).on(stream);
            for (unsigned n = 0; n < sorts; n++) {
                vector words(100000 + 7000 * n, mine);
                thrust::tabulate(policy, words.begin(), words.end(), scattered{t * 1000 + n});
                const word sum = thrust::reduce(policy, words.begin(), words.end());
                thrust::sort(policy, words.begin(), words.end());
                check_sorted(policy, words, sum);
            }
            CUDA_OK(cudaStreamSynchronize(stream));
            CUDA_OK(cudaStreamDestroy(stream));
        });
    }
    for (std::thread &thread : all) {
        thread.join();
    }
    CHECK_EQUAL(CHECK_STATS(pool.get()).used_bytes, 0);
}

/* thrust.cu [SORTS [SECONDS]]: so many by each of four threads; a kernel of so many seconds, which ends as soon as it may, or
 * none. */
int main(int argc, char **argv) {
    const unsigned sorts = argc > 1 ? (unsigned)atoi(argv[1]) : 50;
    print_device();
    load_kernels();
    policies(argc > 2 ? atof(argv[2]) : 5);
    vectors_in_stream_order();
    errors();
    threads(sorts);
    static vector outlives(1000, 7); /* the default pool, and the driver */
    printf("Thrust %d.%d.%d: sorts queued on a policy's stream, vectors on their allocator's, %u sorts by 4 threads, errors\n",
           THRUST_MAJOR_VERSION, THRUST_MINOR_VERSION, THRUST_SUBMINOR_VERSION, 4 * sorts);
    return check_end();
}
