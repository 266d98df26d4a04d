// RMM's pool, arena and async resources, and cudaMallocAsync.
//   peers-rmm TRACE.csv TOUCH.ptx PASSES cap|no-cap WHO...
#include "replay.hpp"

#include <rmm/error.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_async_view_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>

#include <limits>
#include <optional>

template <typename Resource>
struct Rmm : Peer {
  Resource resource;
  explicit Rmm(Resource resource) : resource(std::move(resource)) {}

  void* take(std::size_t size, cudaStream_t stream) override {
    try {
      return resource.allocate(cuda::stream_ref{stream}, size, 256);
    } catch (const std::bad_alloc& error) {
      cudaGetLastError();
      throw Full(error.what());
    }
  }
  void give(void* pointer, std::size_t size, cudaStream_t stream) override {
    resource.deallocate(cuda::stream_ref{stream}, pointer, size, 256);
  }
};

struct Pool : Rmm<rmm::mr::pool_memory_resource> {
  explicit Pool(std::size_t cap)
      : Rmm(rmm::mr::pool_memory_resource(rmm::mr::cuda_memory_resource{}, 0,
                                          cap ? std::optional<std::size_t>(cap) : std::nullopt)) {}
  std::size_t peak() override { return resource.pool_size(); }
};

struct FreeBefore {
  static std::size_t free_memory() {
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "free memory");
    return free;
  }
  std::size_t before = free_memory();
};

// It takes all that it may hold at the start, and does not tell how much that is: what the device
// has less of than before. Without a cap that is the device, and says nothing.
struct Arena : FreeBefore, Rmm<rmm::mr::arena_memory_resource> {
  bool capped;
  explicit Arena(std::size_t cap)
      : Rmm(rmm::mr::arena_memory_resource(rmm::mr::cuda_memory_resource{},
                                           cap ? std::optional<std::size_t>(cap) : std::nullopt)),
        capped(cap > 0) {}
  std::size_t peak() override {
    std::size_t now = free_memory();
    return capped && now < before ? before - now : 0;
  }
};

// A pool of the driver's that keeps what it has and may hold so much.
struct DriverPool {
  cudaMemPool_t pool{};

  explicit DriverPool(std::size_t cap) {
    cudaMemPoolProps props{};
    props.allocType = cudaMemAllocationTypePinned;
    props.location = {cudaMemLocationTypeDevice, 0};
    props.maxSize = cap;
    check(cudaMemPoolCreate(&pool, &props), "a pool");
    std::uint64_t all = std::numeric_limits<std::uint64_t>::max();
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "a threshold");
  }
  DriverPool(const DriverPool&) = delete;
  ~DriverPool() {
    cudaDeviceSynchronize();
    cudaMemPoolDestroy(pool);
  }
  std::size_t peak() {
    std::uint64_t bytes = 0;
    check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &bytes), "the peak");
    return bytes;
  }
};

struct RmmAsync : Peer {
  DriverPool driver;
  rmm::mr::cuda_async_view_memory_resource resource;
  explicit RmmAsync(std::size_t cap) : driver(cap), resource(driver.pool) {}
  void* take(std::size_t size, cudaStream_t stream) override {
    try {
      return resource.allocate(cuda::stream_ref{stream}, size, 256);
    } catch (const std::bad_alloc& error) {
      cudaGetLastError();
      throw Full(error.what());
    }
  }
  void give(void* pointer, std::size_t size, cudaStream_t stream) override {
    resource.deallocate(cuda::stream_ref{stream}, pointer, size, 256);
  }
  std::size_t peak() override { return driver.peak(); }
};

struct MallocAsync : Peer {
  DriverPool driver;
  explicit MallocAsync(std::size_t cap) : driver(cap) {}
  void* take(std::size_t size, cudaStream_t stream) override {
    void* pointer = nullptr;
    check(cudaMallocFromPoolAsync(&pointer, size ? size : 1, driver.pool, stream), "cudaMallocAsync");
    return pointer;
  }
  void give(void* pointer, std::size_t, cudaStream_t stream) override {
    check(cudaFreeAsync(pointer, stream), "cudaFreeAsync");
  }
  std::size_t peak() override { return driver.peak(); }
};

template <typename P>
Make maker() {
  return [](std::size_t cap) -> std::unique_ptr<Peer> {
    try {
      return std::make_unique<P>(cap);
    } catch (const std::bad_alloc& error) {
      cudaGetLastError();
      throw Full(error.what());
    }
  };
}

int main(int count, char** words) {
  if (count < 5) return std::fputs("usage: peers-rmm TRACE.csv TOUCH.ptx PASSES cap|no-cap [WHO...]\n", stderr), 2;
  check(cudaFree(nullptr), "a device");
  Trace trace(words[1]);
  Replay replay(trace);
  Touch touch(words[2]);
  int passes = std::atoi(words[3]);
  bool cap = std::string(words[4]) == "cap";
  auto wanted = [&](const char* who) {
    for (int i = 5; i < count; i++) if (std::string(words[i]) == who) return true;
    return count == 5;
  };
  auto run = [&](const char* key, const char* who, const Make& make, bool peak_is_cap) {
    if (wanted(key)) report(who, make, replay, words[1], touch, passes, cap, peak_is_cap);
  };
  run("pool", "RMM pool", maker<Pool>(), false);
  run("arena", "RMM arena", maker<Arena>(), true);
  run("async", "RMM async", maker<RmmAsync>(), false);
  run("malloc-async", "cudaMallocAsync", maker<MallocAsync>(), false);
}
