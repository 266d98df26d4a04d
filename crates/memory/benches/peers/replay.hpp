// A recorded trace through another allocator, measured as `plimsoll replay` measures ours:
// the same events, a cold pass and warm ones, the fastest warm pass, the smallest cap at
// which two passes complete, and once more with a kernel on every block.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

using Clock = std::chrono::steady_clock;

// What a peer throws, or what its exceptions are turned into, when it is full.
struct Full : std::runtime_error {
  using runtime_error::runtime_error;
};

struct Peer {
  virtual ~Peer() = default;
  virtual void* take(std::size_t size, cudaStream_t stream) = 0;
  virtual void give(void* pointer, std::size_t size, cudaStream_t stream) = 0;
  // The most that was held from the driver so far; 0 where it does not tell.
  virtual std::size_t peak() = 0;
};

// A new peer that may hold so much; all of the device where that is 0.
using Make = std::function<std::unique_ptr<Peer>(std::size_t cap)>;

struct Event {
  bool is_free;
  uint32_t slot;
  std::size_t size;
  uint32_t stream;
};

struct Trace {
  std::vector<Event> events;
  uint32_t slots = 0, streams = 1;
  std::size_t live = 0;

  explicit Trace(const std::string& file) {
    std::ifstream in(file);
    if (!in) throw std::runtime_error("cannot read " + file);
    std::unordered_map<long, uint32_t> names, numbers;
    std::vector<uint32_t> unused;
    std::vector<std::size_t> sizes;
    std::size_t now = 0;
    std::string line;
    while (std::getline(in, line)) {
      char op;
      long id;
      unsigned long size, stream;
      if (std::sscanf(line.c_str(), "%c,%ld,%lu,%lu", &op, &id, &size, &stream) != 4) continue;
      auto number = numbers.try_emplace(stream, numbers.size()).first->second;
      streams = numbers.size();
      if (op == 'a') {
        uint32_t slot = slots;
        if (unused.empty()) slots++, sizes.push_back(0);
        else slot = unused.back(), unused.pop_back();
        names[id] = slot, sizes[slot] = size;
        now += size, live = std::max(live, now);
        events.push_back({false, slot, size, number});
      } else {
        uint32_t slot = names.at(id);
        names.erase(id), unused.push_back(slot), now -= sizes[slot];
        events.push_back({true, slot, sizes[slot], number});
      }
    }
  }
};

inline void check(cudaError_t code, const char* what) {
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw Full(what);
  }
  if (code != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(code));
}

// The kernel that our own replays use.
struct Touch {
  CUmodule module{};
  CUfunction function{};

  explicit Touch(const std::string& file) {
    std::ifstream in(file);
    std::stringstream text;
    text << in.rdbuf();
    if (cuModuleLoadData(&module, text.str().c_str()) || cuModuleGetFunction(&function, module, "touch"))
      throw std::runtime_error("cannot load " + file);
  }

  void operator()(void* pointer, std::size_t size, cudaStream_t stream) const {
    if (size < 4) return;
    uint32_t step = 2 << 20, pages = (size - 4) / step + 1;
    void* arguments[] = {&pointer, &pages, &step};
    if (cuLaunchKernel(function, (pages + 63) / 64, 1, 1, 64, 1, 1, 0, stream, arguments, nullptr))
      throw std::runtime_error("cannot launch");
  }
};

struct Replay {
  const Trace& trace;
  std::vector<cudaStream_t> streams;
  std::vector<void*> blocks;
  std::vector<std::size_t> sizes;

  explicit Replay(const Trace& trace)
      : trace(trace), streams(1, nullptr), blocks(trace.slots), sizes(trace.slots) {
    while (streams.size() < trace.streams) {
      cudaStream_t stream;
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
      streams.push_back(stream);
    }
  }

  void step(Peer& peer, const Event& event) {
    auto stream = streams[event.stream];
    if (event.is_free) {
      peer.give(blocks[event.slot], event.size, stream);
      blocks[event.slot] = nullptr;
    } else {
      blocks[event.slot] = peer.take(event.size, stream);
      sizes[event.slot] = event.size;
    }
  }

  // A pass that takes longer than this has not completed: an allocator that gives all it has
  // back to the driver at every event gets there, some day.
  static constexpr auto PATIENCE = std::chrono::seconds(3);

  void look_at_clock(std::size_t done, Clock::time_point start) const {
    if (done % 4096 == 0 && Clock::now() - start > PATIENCE) throw Full("3 s were not enough");
  }

  // Nanoseconds an event; with kernels, of the peer's own calls alone, each timed by itself.
  double pass(Peer& peer, const Touch* touch) {
    Clock::duration time{};
    std::size_t done = 0;
    auto begin = Clock::now();
    try {
      if (!touch) {
        for (auto& event : trace.events) step(peer, event), look_at_clock(++done, begin);
        time = Clock::now() - begin;
      } else {
        for (auto& event : trace.events) {
          look_at_clock(++done, begin);
          auto start = Clock::now();
          step(peer, event);
          time += Clock::now() - start;
          if (!event.is_free) (*touch)(blocks[event.slot], event.size, streams[event.stream]);
        }
      }
    } catch (...) {
      clear(peer);
      throw;
    }
    clear(peer);
    return std::chrono::duration<double, std::nano>(time).count() / trace.events.size();
  }

  void clear(Peer& peer) {
    for (uint32_t slot = 0; slot < blocks.size(); slot++)
      if (blocks[slot]) peer.give(blocks[slot], sizes[slot], streams[0]), blocks[slot] = nullptr;
    check(cudaDeviceSynchronize(), "waiting");
  }
};

struct Figures {
  double cold = -1, warm = -1;
  std::size_t peak = 0;
};

// A cold pass and warm ones, of which the fastest counts. Full is thrown on.
inline Figures measure(const Make& make, std::size_t cap, Replay& replay, int passes, const Touch* touch) {
  auto peer = make(cap);
  Figures figures;
  figures.cold = replay.pass(*peer, touch);
  for (int i = 0; i < passes; i++) {
    double ns = replay.pass(*peer, touch);
    if (figures.warm < 0 || ns < figures.warm) figures.warm = ns;
  }
  figures.peak = peer->peak();
  return figures;
}

inline bool completes(const Make& make, std::size_t cap, Replay& replay) {
  try {
    measure(make, cap, replay, 1, nullptr);
    return true;
  } catch (const Full&) {
    return false;
  }
}

// The smallest cap at which two passes complete: up from what is live by doubling strides,
// then by halving, to 2 MiB or a five-hundredth of what is live.
inline std::size_t smallest(const Make& make, Replay& replay, std::size_t most) {
  std::size_t live = replay.trace.live, step = std::max<std::size_t>(2 << 20, live / 500 >> 21 << 21);
  std::size_t low = (live + step - 1) / step - 1, high = low + 1, stride = 1;
  while (!completes(make, high * step, replay)) {
    if (high * step >= most) return 0;
    low = high, high += stride, stride *= 2;
  }
  while (high - low > 1) {
    std::size_t middle = low + (high - low) / 2;
    (completes(make, middle * step, replay) ? high : low) = middle;
  }
  return high * step;
}

inline std::string number(double value) { return value < 0 ? "null" : std::to_string(value); }
inline std::string number(std::size_t value) { return value ? std::to_string(value) : "null"; }

// A text that can stand in JSON.
inline std::string plain(std::string text) {
  for (auto& c : text)
    if (c == '"' || c == '\n' || c == '\\') c = ' ';
  return text.substr(0, 120);
}

// Runs a step; what ends it early is returned.
inline std::string attempt(const std::function<void()>& step) {
  try {
    step();
    return "";
  } catch (const std::exception& error) {
    return plain(error.what());
  }
}

// What one peer did on one trace: a line of JSON for its times, and one for its cap, since
// looking for that can take long.
inline void report(const char* who, const Make& make, Replay& replay, const std::string& trace, const Touch& touch,
                   int passes, bool cap, bool peak_is_cap = false) {
  Figures warm, kernels, there;
  auto why = attempt([&] {
    warm = measure(make, 0, replay, passes, nullptr);
    kernels = measure(make, 0, replay, std::min(passes, 2), &touch);
  });
  auto head = std::string("{\"who\": \"") + who + "\", \"trace\": \"" + trace + "\", ";
  std::printf("%s\"peak_live_bytes\": %zu, \"cold_ns_per_event\": %s, \"warm_ns_per_event\": %s, "
              "\"peak_reserved_bytes\": %s, \"kernels_warm_ns_per_event\": %s, \"why\": \"%s\"}\n",
              head.c_str(), replay.trace.live, number(warm.cold).c_str(), number(warm.warm).c_str(),
              number(warm.peak).c_str(), number(kernels.warm).c_str(), why.c_str());
  std::fflush(stdout);
  if (!cap) return;
  std::size_t found = 0;
  why = attempt([&] {
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "free memory");
    found = smallest(make, replay, free);
    if (found) there = measure(make, found, replay, passes, nullptr);
  });
  std::printf("%s\"smallest_cap_bytes\": %s, \"smallest_cap_cold_ns_per_event\": %s, "
              "\"smallest_cap_warm_ns_per_event\": %s, %s\"why_at_cap\": \"%s\"}\n",
              head.c_str(), number(found).c_str(), number(there.cold).c_str(), number(there.warm).c_str(),
              peak_is_cap ? ("\"peak_reserved_bytes\": " + number(there.peak ? there.peak : found) + ", ").c_str() : "",
              why.c_str());
  std::fflush(stdout);
}
