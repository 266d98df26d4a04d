// PyTorch's caching allocator, by its C++ interface; expandable segments by the environment
// (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True).
//   peers-torch TRACE.csv TOUCH.ptx PASSES cap|no-cap NAME
#include "replay.hpp"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>

namespace allocator = c10::cuda::CUDACachingAllocator;

struct Torch : Peer {
  explicit Torch(std::size_t cap) {
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "free memory");
    allocator::emptyCache();
    // A hair more, since a share is no whole number.
    allocator::get()->setMemoryFraction(cap ? double(cap) / double(total) + 1e-12 : 1.0, 0);
    allocator::get()->resetPeakStats(0);
  }
  ~Torch() override {
    cudaDeviceSynchronize();
    allocator::emptyCache();
  }
  void* take(std::size_t size, cudaStream_t stream) override {
    try {
      return allocator::get()->raw_alloc_with_stream(size, stream);
    } catch (const c10::OutOfMemoryError& error) {
      throw Full("out of memory");
    }
  }
  void give(void* pointer, std::size_t, cudaStream_t) override { allocator::get()->raw_delete(pointer); }
  std::size_t peak() override { return allocator::get()->getDeviceStats(0).reserved_bytes[0].peak; }
};

int main(int count, char** words) {
  if (count < 6) return std::fputs("usage: peers-torch TRACE.csv TOUCH.ptx PASSES cap|no-cap NAME\n", stderr), 2;
  check(cudaFree(nullptr), "a device");
  allocator::init(1);
  Trace trace(words[1]);
  Replay replay(trace);
  Touch touch(words[2]);
  Make make = [](std::size_t cap) { return std::make_unique<Torch>(cap); };
  report(words[5], make, replay, words[1], touch, std::atoi(words[3]), std::string(words[4]) == "cap");
}
