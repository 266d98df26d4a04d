// TensorRT behind a flat C interface.
//
// TensorRT speaks C++ only, with tables of virtual functions that change from one major
// version to the next, so this file is compiled where its headers are: into plimsoll by the
// feature `tensorrt`, or on the target into a small library that plimsoll loads
// (`plimsoll generate --tensorrt DIR`). It links against nothing: libnvinfer, its parser and
// the CUDA driver are loaded when the first engine is opened.
//
// Every byte on the device goes through the ledger of the caller, which counts it and may
// refuse it: weights (by an allocator of ours), scratch memory (contexts are made without
// any) and the buffers of inputs and outputs.
//
// The caller's stream is worked on, so that it can put work of its own before and behind a
// run, on the device, where each input and output lies at an address that it is told. Copies
// are from and to the caller's memory, which is its own to pin.
//
// A call returns 0, or writes into `why` what went wrong, in TensorRT's own words where it
// said any. Written for TensorRT 8.5 and 8.6, 10 and 11.

#include <NvInfer.h>
#include <NvOnnxParser.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#if NV_TENSORRT_MAJOR < 8 || (NV_TENSORRT_MAJOR == 8 && NV_TENSORRT_MINOR < 5)
#error "TensorRT 8.5 or newer is needed: older ones have no names for inputs and outputs"
#endif

#define API extern "C" __attribute__((visibility("default")))

extern "C" {
struct PlimsollLedger {
    void* user;
    int32_t (*charge)(void* user, uint64_t bytes);
    void (*release)(void* user, uint64_t bytes);
};
struct PlimsollTensor {
    char const* name;
    int32_t is_input;
    int32_t element; // nvinfer1::DataType
    int32_t rank;
    int64_t dims[8]; // -1 where it is not fixed
};
struct PlimsollBytes {
    void const* data;
    uint64_t length; // 0 where there are none
};
struct PlimsollBuild {
    int32_t fp16;
    int32_t int8;
    int32_t no_tactic_sources;
    int32_t quick;
    uint64_t workspace;
    PlimsollBytes timings; // of an earlier build, as `keep` was given them
    PlimsollBytes ranges;  // of an earlier calibration, likewise; no picture is then asked for
    void* user;
    int32_t (*next)(void* user, void* image, uint64_t bytes); // 1 where there is one more
    void (*keep)(void* user, int32_t what, void const* data, uint64_t bytes); // 0 timings, 1 ranges
};
}

namespace {

// ---- the CUDA driver, as much of it as is needed ----------------------------------------

using Code = int;
using Pointer = unsigned long long;

struct Driver {
    Code (*init)(unsigned);
    Code (*device)(int*, int);
    Code (*retain)(void**, int);
    Code (*release)(int);
    Code (*use)(void*);
    Code (*alloc)(Pointer*, size_t);
    Code (*free)(Pointer);
    Code (*fill)(Pointer, unsigned char, size_t, void*);
    Code (*stream)(void**, unsigned);
    Code (*streamDestroy)(void*);
    Code (*wait)(void*);
    Code (*in)(Pointer, void const*, size_t, void*);
    Code (*out)(void*, Pointer, size_t, void*);
    Code (*capture)(void*, int);
    Code (*captured)(void*, void**);
    Code (*instantiate)(void**, void*, unsigned long long);
    Code (*launch)(void*, void*);
    Code (*graphDestroy)(void*);
    Code (*execDestroy)(void*);
    Code (*text)(Code, char const**);
};

Driver cuda{};
std::mutex loading;

// ---- errors ------------------------------------------------------------------------------

// What TensorRT says while a call runs. One at a time, as it has one logger a process.
class Logger : public nvinfer1::ILogger {
  public:
    void log(Severity severity, char const* text) noexcept override {
        if (severity > Severity::kERROR) return;
        try {
            std::lock_guard<std::mutex> lock(mutex);
            if (said.size() < 4096) said += (said.empty() ? "" : "; ") + std::string(text);
        } catch (...) {
        }
    }
    std::string take() {
        std::lock_guard<std::mutex> lock(mutex);
        std::string all;
        all.swap(said);
        return all;
    }

  private:
    std::mutex mutex;
    std::string said;
};

Logger logger;

struct Failure {
    std::string what;
};

void check(Code code, char const* call) {
    if (code == 0) return;
    char const* text = nullptr;
    if (cuda.text) cuda.text(code, &text);
    throw Failure{std::string(call) + ": " + (text ? text : "error ") + (text ? "" : std::to_string(code))};
}

// Runs `work`; what it throws becomes text, with what TensorRT said of it.
template <typename Work> int guarded(char* why, size_t room, Work work) {
    std::string what;
    try {
        logger.take();
        work();
        return 0;
    } catch (Failure const& failure) {
        what = failure.what;
    } catch (std::exception const& error) {
        what = error.what();
    } catch (...) {
        what = "an exception without a name";
    }
    std::string said = logger.take();
    if (!said.empty()) what += ": " + said;
    std::snprintf(why, room, "%s", what.c_str());
    return 1;
}

// ---- libraries ---------------------------------------------------------------------------

void* library(char const* given, char const* stem) {
    std::string tried;
    std::vector<std::string> names;
    if (given && *given) names.push_back(given);
    else names = {std::string(stem) + ".so." + std::to_string(NV_TENSORRT_MAJOR), std::string(stem) + ".so"};
    for (auto const& name : names) {
        if (void* found = dlopen(name.c_str(), RTLD_LAZY | RTLD_GLOBAL)) return found;
        tried += (tried.empty() ? "" : "; ") + std::string(dlerror());
    }
    throw Failure{tried};
}

template <typename Function> void symbol(void* from, Function& to, char const* name) {
    to = reinterpret_cast<Function>(dlsym(from, name));
    if (!to) throw Failure{std::string("no ") + name + " in it"};
}

struct Entries {
    void* (*runtime)(void*, int32_t);
    void* (*builder)(void*, int32_t);
    int32_t (*version)();
};

Entries entries{};

void loadDriver() {
    void* lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL);
    if (!lib) throw Failure{std::string("the CUDA driver: ") + dlerror()};
    Driver d{};
    symbol(lib, d.init, "cuInit");
    symbol(lib, d.device, "cuDeviceGet");
    symbol(lib, d.retain, "cuDevicePrimaryCtxRetain");
    symbol(lib, d.release, "cuDevicePrimaryCtxRelease");
    symbol(lib, d.use, "cuCtxSetCurrent");
    symbol(lib, d.alloc, "cuMemAlloc_v2");
    symbol(lib, d.free, "cuMemFree_v2");
    symbol(lib, d.fill, "cuMemsetD8Async");
    symbol(lib, d.stream, "cuStreamCreate");
    symbol(lib, d.streamDestroy, "cuStreamDestroy_v2");
    symbol(lib, d.wait, "cuStreamSynchronize");
    symbol(lib, d.in, "cuMemcpyHtoDAsync_v2");
    symbol(lib, d.out, "cuMemcpyDtoHAsync_v2");
    symbol(lib, d.capture, "cuStreamBeginCapture_v2");
    symbol(lib, d.captured, "cuStreamEndCapture");
    symbol(lib, d.instantiate, "cuGraphInstantiateWithFlags");
    symbol(lib, d.launch, "cuGraphLaunch");
    symbol(lib, d.graphDestroy, "cuGraphDestroy");
    symbol(lib, d.execDestroy, "cuGraphExecDestroy");
    symbol(lib, d.text, "cuGetErrorString");
    cuda = d;
    check(cuda.init(0), "cuInit");
}

int major(int32_t version) { return version >= 10000 ? version / 10000 : version / 1000; }

void load(char const* given) {
    std::lock_guard<std::mutex> lock(loading);
    if (entries.runtime) return;
    void* nvinfer = library(given, "libnvinfer");
    Entries found{};
    symbol(nvinfer, found.version, "getInferLibVersion");
    if (major(found.version()) != NV_TENSORRT_MAJOR) {
        throw Failure{"libnvinfer is version " + std::to_string(found.version()) + ", and this was built for " +
                      std::to_string(NV_TENSORRT_MAJOR) + ": build it again with the headers of the one in use"};
    }
    symbol(nvinfer, found.runtime, "createInferRuntime_INTERNAL");
    symbol(nvinfer, found.builder, "createInferBuilder_INTERNAL");
    if (!cuda.init) loadDriver();
    // Engines may hold layers of the plugin library; where it is missing most do not care.
    std::string plugin = "libnvinfer_plugin.so." + std::to_string(NV_TENSORRT_MAJOR);
    if (void* plugins = dlopen(plugin.c_str(), RTLD_LAZY | RTLD_GLOBAL)) {
        auto init = reinterpret_cast<bool (*)(void*, char const*)>(dlsym(plugins, "initLibNvInferPlugins"));
        if (init) init(&logger, "");
    }
    entries = found;
}

// ---- memory ------------------------------------------------------------------------------

// Hands out device memory that the caller was asked for.
class Memory : public nvinfer1::IGpuAllocator {
  public:
    explicit Memory(PlimsollLedger const& ledger) : ledger(ledger) {}
    ~Memory() override {
        for (auto const& block : blocks) give(block.first, block.second);
    }
    void* take(uint64_t bytes) noexcept {
        if (bytes == 0 || !ledger.charge(ledger.user, bytes)) return nullptr;
        Pointer at = 0;
        if (cuda.alloc(&at, bytes) != 0) {
            ledger.release(ledger.user, bytes);
            return nullptr;
        }
        std::lock_guard<std::mutex> lock(mutex);
        blocks[at] = bytes;
        return reinterpret_cast<void*>(at);
    }
    bool give(void* memory) noexcept {
        std::lock_guard<std::mutex> lock(mutex);
        auto block = blocks.find(reinterpret_cast<Pointer>(memory));
        if (block == blocks.end()) return memory == nullptr;
        give(block->first, block->second);
        blocks.erase(block);
        return true;
    }
    void* allocate(uint64_t const size, uint64_t const, nvinfer1::AllocatorFlags const) noexcept override {
        return take(size);
    }
    bool deallocate(void* const memory) noexcept override { return give(memory); }
#if NV_TENSORRT_MAJOR < 10
    void free(void* const memory) noexcept override { give(memory); }
#endif

  private:
    void give(Pointer at, uint64_t bytes) noexcept {
        cuda.free(at);
        ledger.release(ledger.user, bytes);
    }
    PlimsollLedger ledger;
    std::mutex mutex;
    std::map<Pointer, uint64_t> blocks;
};

uint64_t width(nvinfer1::DataType type) {
    switch (static_cast<int>(type)) {
    case 0: case 3: return 4; // f32, i32
    case 1: case 7: return 2; // f16, bf16
    case 8: return 8;         // i64
    default: return 1;
    }
}

} // namespace

// ---- an engine ---------------------------------------------------------------------------

struct PlimsollEngine {
    struct Buffer {
        std::string name;
        bool input = false;
        uint64_t bytes = 0;
        void* device = nullptr;
    };
    int number = 0;
    void* gpu = nullptr;
    void* stream = nullptr;
    bool ownsStream = false;
    void* graph = nullptr;
    void* exec = nullptr;
    bool wantsGraph = false;
    uint64_t scratch = 0;
    // In this order: what is declared last goes first, and needs those above it.
    std::unique_ptr<Memory> memory;
    std::unique_ptr<nvinfer1::IRuntime> runtime;
    std::unique_ptr<nvinfer1::ICudaEngine> engine;
    std::unique_ptr<nvinfer1::IExecutionContext> context;
    std::vector<Buffer> buffers;

    void compute() {
        if (!context->enqueueV3(reinterpret_cast<cudaStream_t>(stream))) throw Failure{"TensorRT could not run it"};
    }

    // Records one run, without its copies, which may be left out. Some engines cannot be
    // recorded: those go on without.
    void record() {
        compute();
        check(cuda.wait(stream), "first run");
        if (!wantsGraph || cuda.capture(stream, 2 /* relaxed */) != 0) return;
        bool good = true;
        try {
            compute();
        } catch (Failure const&) {
            good = false;
        }
        Code code = cuda.captured(stream, &graph);
        if (!good || code != 0 || cuda.instantiate(&exec, graph, 0) != 0) exec = nullptr;
        logger.take();
    }

    ~PlimsollEngine() {
        if (gpu) cuda.use(gpu);
        if (stream) cuda.wait(stream);
        if (exec) cuda.execDestroy(exec);
        if (graph) cuda.graphDestroy(graph);
        context.reset();
        for (auto& buffer : buffers)
            if (buffer.device && memory) memory->give(buffer.device);
        engine.reset();
        runtime.reset();
        memory.reset();
        if (ownsStream) cuda.streamDestroy(stream);
        if (gpu) cuda.release(number);
    }
};

API int32_t plimsoll_trt_abi() { return 3; }

API int32_t plimsoll_trt_load(char const* nvinfer, int32_t* version, char* why, size_t room) {
    return guarded(why, room, [&] {
        load(nvinfer);
        *version = entries.version();
    });
}

// `stream` is one of the device's primary context, and outlives the engine; without one the
// engine makes its own.
API int32_t plimsoll_trt_open(void const* plan, uint64_t bytes, int32_t device, int32_t graph, void* stream,
                              PlimsollLedger const* ledger, PlimsollEngine** out, char* why, size_t room) {
    return guarded(why, room, [&] {
        auto made = std::make_unique<PlimsollEngine>();
        check(cuda.device(&made->number, device), "cuDeviceGet");
        check(cuda.retain(&made->gpu, made->number), "cuDevicePrimaryCtxRetain");
        check(cuda.use(made->gpu), "cuCtxSetCurrent");
        made->stream = stream;
        if (!stream) check(cuda.stream(&made->stream, 1 /* does not wait for others */), "cuStreamCreate");
        made->ownsStream = !stream;
        made->wantsGraph = graph != 0;
        made->memory = std::make_unique<Memory>(*ledger);
        made->runtime.reset(static_cast<nvinfer1::IRuntime*>(entries.runtime(&logger, NV_TENSORRT_VERSION)));
        if (!made->runtime) throw Failure{"no runtime could be made"};
        made->runtime->setGpuAllocator(made->memory.get());
        made->engine.reset(made->runtime->deserializeCudaEngine(plan, bytes));
        if (!made->engine) throw Failure{"TensorRT refuses the engine"};
        for (int32_t i = 0; i < made->engine->getNbIOTensors(); ++i) {
            PlimsollEngine::Buffer buffer;
            buffer.name = made->engine->getIOTensorName(i);
            buffer.input = made->engine->getTensorIOMode(buffer.name.c_str()) == nvinfer1::TensorIOMode::kINPUT;
            made->buffers.push_back(buffer);
        }
#if NV_TENSORRT_MAJOR >= 10
        made->context.reset(made->engine->createExecutionContext(nvinfer1::ExecutionContextAllocationStrategy::kUSER_MANAGED));
#else
        made->context.reset(made->engine->createExecutionContextWithoutDeviceMemory());
#endif
        if (!made->context) throw Failure{"no context could be made"};
        *out = made.release();
    });
}

API void plimsoll_trt_close(PlimsollEngine* engine) { delete engine; }

API int32_t plimsoll_trt_tensors(PlimsollEngine const* engine) { return static_cast<int32_t>(engine->buffers.size()); }

// Shapes are those of the context where they are settled, else those of the engine.
API int32_t plimsoll_trt_tensor(PlimsollEngine const* engine, int32_t index, PlimsollTensor* out, char* why, size_t room) {
    return guarded(why, room, [&] {
        auto const& buffer = engine->buffers.at(static_cast<size_t>(index));
        char const* name = buffer.name.c_str();
        auto dims = engine->context->getTensorShape(name);
        if (dims.nbDims < 0) dims = engine->engine->getTensorShape(name);
        if (dims.nbDims < 0 || dims.nbDims > 8) throw Failure{"a tensor with an unknown number of extents"};
        *out = {name, buffer.input, static_cast<int32_t>(engine->engine->getTensorDataType(name)), dims.nbDims, {}};
        for (int32_t axis = 0; axis < dims.nbDims; ++axis) out->dims[axis] = dims.d[axis];
    });
}

API int32_t plimsoll_trt_shape(PlimsollEngine* engine, int32_t index, int32_t rank, int64_t const* dims, char* why, size_t room) {
    return guarded(why, room, [&] {
        check(cuda.use(engine->gpu), "cuCtxSetCurrent");
        nvinfer1::Dims shape{};
        shape.nbDims = rank;
        for (int32_t axis = 0; axis < rank; ++axis) shape.d[axis] = static_cast<decltype(shape.d[0] + 0)>(dims[axis]);
        if (!engine->context->setInputShape(engine->buffers.at(static_cast<size_t>(index)).name.c_str(), shape))
            throw Failure{"this engine does not take images of that size"};
    });
}

// Buffers, scratch memory and, where wanted, the recording of a run.
API int32_t plimsoll_trt_prepare(PlimsollEngine* engine, char* why, size_t room) {
    return guarded(why, room, [&] {
        check(cuda.use(engine->gpu), "cuCtxSetCurrent");
#if NV_TENSORRT_MAJOR > 10 || (NV_TENSORRT_MAJOR == 10 && NV_TENSORRT_MINOR >= 1)
        engine->scratch = static_cast<uint64_t>(engine->engine->getDeviceMemorySizeV2());
#else
        engine->scratch = engine->engine->getDeviceMemorySize();
#endif
        void* scratch = engine->scratch ? engine->memory->take(engine->scratch) : nullptr;
        if (engine->scratch && !scratch)
            throw Failure{"the limit or the device has no room for its scratch memory of " + std::to_string(engine->scratch) + " bytes"};
#if NV_TENSORRT_MAJOR > 10 || (NV_TENSORRT_MAJOR == 10 && NV_TENSORRT_MINOR >= 1)
        engine->context->setDeviceMemoryV2(scratch, static_cast<int64_t>(engine->scratch));
#else
        engine->context->setDeviceMemory(scratch);
#endif
        for (auto& buffer : engine->buffers) {
            auto dims = engine->context->getTensorShape(buffer.name.c_str());
            buffer.bytes = width(engine->engine->getTensorDataType(buffer.name.c_str()));
            for (int32_t axis = 0; axis < dims.nbDims; ++axis) {
                if (dims.d[axis] < 1) throw Failure{buffer.name + " has a shape that is not settled"};
                buffer.bytes *= static_cast<uint64_t>(dims.d[axis]);
            }
            buffer.device = engine->memory->take(buffer.bytes);
            if (!buffer.device) throw Failure{"the limit or the device has no room for " + buffer.name};
            check(cuda.fill(reinterpret_cast<Pointer>(buffer.device), 0, buffer.bytes, engine->stream), "cuMemsetD8");
            if (!engine->context->setTensorAddress(buffer.name.c_str(), buffer.device)) throw Failure{"no address for " + buffer.name};
        }
        engine->record();
    });
}

// Puts a run on the stream. `hosts` has a place for every tensor: copied in from for inputs,
// copied out to for outputs, and null for what is left where it is on the device. They belong
// to the device until plimsoll_trt_wait has returned, whatever is returned here.
API int32_t plimsoll_trt_run(PlimsollEngine* engine, void* const* hosts, char* why, size_t room) {
    return guarded(why, room, [&] {
        check(cuda.use(engine->gpu), "cuCtxSetCurrent");
        for (size_t i = 0; i < engine->buffers.size(); ++i) {
            auto const& buffer = engine->buffers[i];
            if (buffer.input && hosts[i])
                check(cuda.in(reinterpret_cast<Pointer>(buffer.device), hosts[i], buffer.bytes, engine->stream), "copy in");
        }
        if (engine->exec) check(cuda.launch(engine->exec, engine->stream), "cuGraphLaunch");
        else engine->compute();
        for (size_t i = 0; i < engine->buffers.size(); ++i) {
            auto const& buffer = engine->buffers[i];
            if (!buffer.input && hosts[i])
                check(cuda.out(hosts[i], reinterpret_cast<Pointer>(buffer.device), buffer.bytes, engine->stream), "copy out");
        }
    });
}

// Waits for all that is on the stream.
API int32_t plimsoll_trt_wait(PlimsollEngine* engine, char* why, size_t room) {
    return guarded(why, room, [&] {
        check(cuda.use(engine->gpu), "cuCtxSetCurrent");
        check(cuda.wait(engine->stream), "the run");
    });
}

// Where a tensor lies on the device, once prepared; it stays there. 0 where there is none.
API uint64_t plimsoll_trt_device(PlimsollEngine const* engine, int32_t index) {
    auto const at = static_cast<size_t>(index);
    return at < engine->buffers.size() ? reinterpret_cast<Pointer>(engine->buffers[at].device) : 0;
}

API int32_t plimsoll_trt_has_graph(PlimsollEngine const* engine) { return engine->exec != nullptr; }

API uint64_t plimsoll_trt_scratch(PlimsollEngine const* engine) { return engine->scratch; }

// ---- building ----------------------------------------------------------------------------

// From 10.1 on more and more of what builds in few bits is marked as deprecated; up to 10 there is
// nothing else that takes the precision from a flag and ranges from pictures.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

#if NV_TENSORRT_MAJOR < 11
// Shows pictures to TensorRT, which finds the range of every value by them; or gives it the
// ranges that were found before.
class Calibrator : public nvinfer1::IInt8EntropyCalibrator2 {
  public:
    Calibrator(PlimsollBuild const& options, uint64_t bytes) : options(options), image(bytes) {
        check(cuda.alloc(&device, bytes), "cuMemAlloc");
    }
    ~Calibrator() override { cuda.free(device); }
    int32_t getBatchSize() const noexcept override { return 1; }
    bool getBatch(void* bindings[], char const*[], int32_t) noexcept override {
        if (!options.next(options.user, image.data(), image.size())) return false;
        if (cuda.in(device, image.data(), image.size(), nullptr) != 0 || cuda.wait(nullptr) != 0) return false;
        bindings[0] = reinterpret_cast<void*>(device);
        return true;
    }
    void const* readCalibrationCache(size_t& length) noexcept override {
        length = options.ranges.length;
        return length ? options.ranges.data : nullptr;
    }
    void writeCalibrationCache(void const* data, size_t length) noexcept override {
        options.keep(options.user, 1, data, length);
    }

  private:
    PlimsollBuild options;
    std::vector<char> image;
    Pointer device = 0;
};

bool weighs(nvinfer1::LayerType type) {
    return type == nvinfer1::LayerType::kCONVOLUTION || type == nvinfer1::LayerType::kDECONVOLUTION ||
           type == nvinfer1::LayerType::kMATRIX_MULTIPLY;
}

// What follows the last convolution stays in f32: there a detector joins boxes in pixels and
// scores below one into one output, and one range of eight bits for both leaves nothing of the
// scores. It is little work.
void keepTheEndWide(nvinfer1::INetworkDefinition& network, nvinfer1::IBuilderConfig& config) {
    std::set<nvinfer1::ITensor const*> before; // what a convolution is computed from
    for (int32_t i = network.getNbLayers() - 1; i >= 0; --i) {
        auto* layer = network.getLayer(i);
        bool leads = weighs(layer->getType());
        for (int32_t k = 0; k < layer->getNbOutputs(); ++k) leads |= before.count(layer->getOutput(k)) > 0;
        if (leads) {
            for (int32_t k = 0; k < layer->getNbInputs(); ++k) before.insert(layer->getInput(k));
        } else if (layer->getType() != nvinfer1::LayerType::kCONSTANT &&
                   layer->getOutputType(0) == nvinfer1::DataType::kFLOAT) {
            layer->setPrecision(nvinfer1::DataType::kFLOAT);
            for (int32_t k = 0; k < layer->getNbOutputs(); ++k) layer->setOutputType(k, nvinfer1::DataType::kFLOAT);
        }
    }
    config.setFlag(nvinfer1::BuilderFlag::kPREFER_PRECISION_CONSTRAINTS);
}

std::unique_ptr<Calibrator> eightBits(nvinfer1::INetworkDefinition& network, nvinfer1::IBuilderConfig& config,
                                      PlimsollBuild const& options) {
    auto dims = network.getInput(0)->getDimensions();
    uint64_t size = 4;
    for (int32_t axis = 0; axis < dims.nbDims; ++axis) size *= static_cast<uint64_t>(dims.d[axis]);
    auto calibrator = std::make_unique<Calibrator>(options, size);
    config.setFlag(nvinfer1::BuilderFlag::kINT8);
    config.setInt8Calibrator(calibrator.get());
    keepTheEndWide(network, config);
    return calibrator;
}
#endif

void shorten(nvinfer1::IBuilderConfig& config) {
#if NV_TENSORRT_MAJOR > 8 || NV_TENSORRT_MINOR >= 6
    config.setBuilderOptimizationLevel(1);
#else
    config.setFlag(nvinfer1::BuilderFlag::kENABLE_TACTIC_HEURISTIC);
    config.setAvgTimingIterations(1);
    config.setMinTimingIterations(1);
#endif
}

// Times of an earlier build where they are of this GPU and version; else it begins without.
std::unique_ptr<nvinfer1::ITimingCache> known(nvinfer1::IBuilderConfig& config, PlimsollBytes timings) {
    std::unique_ptr<nvinfer1::ITimingCache> cache;
    if (timings.length) cache.reset(config.createTimingCache(timings.data, timings.length));
    if (!cache || !config.setTimingCache(*cache, false)) {
        cache.reset(config.createTimingCache(nullptr, 0));
        if (cache) config.setTimingCache(*cache, false);
    }
    return cache;
}

} // namespace

// Builds an engine from an ONNX file in memory; `blob` is freed by plimsoll_trt_free.
API int32_t plimsoll_trt_build(void const* onnx, uint64_t bytes, int32_t device, PlimsollBuild const* options,
                               void** blob, uint64_t* length, char* why, size_t room) {
    return guarded(why, room, [&] {
        int number = 0;
        void* gpu = nullptr;
        check(cuda.device(&number, device), "cuDeviceGet");
        check(cuda.retain(&gpu, number), "cuDevicePrimaryCtxRetain");
        check(cuda.use(gpu), "cuCtxSetCurrent");
        std::unique_ptr<nvinfer1::IBuilder> builder(static_cast<nvinfer1::IBuilder*>(entries.builder(&logger, NV_TENSORRT_VERSION)));
        if (!builder) throw Failure{"no builder could be made"};
        std::unique_ptr<nvinfer1::INetworkDefinition> network(builder->createNetworkV2(NV_TENSORRT_MAJOR < 10 ? 1U : 0U));
        std::unique_ptr<nvinfer1::IBuilderConfig> config(builder->createBuilderConfig());
        if (!network || !config) throw Failure{"no network could be made"};
        void* (*create)(void*, void*, int) = nullptr;
        symbol(library(nullptr, "libnvonnxparser"), create, "createNvOnnxParser_INTERNAL");
        std::unique_ptr<nvonnxparser::IParser> parser(static_cast<nvonnxparser::IParser*>(create(network.get(), &logger, NV_ONNX_PARSER_VERSION)));
        if (!parser) throw Failure{"no parser could be made"};
        if (!parser->parse(onnx, bytes)) {
            std::string what = "TensorRT cannot read the graph";
            for (int32_t i = 0; i < parser->getNbErrors(); ++i) what += std::string("; ") + parser->getError(i)->desc();
            throw Failure{what};
        }
        config->setMemoryPoolLimit(nvinfer1::MemoryPoolType::kWORKSPACE, options->workspace);
        if (options->no_tactic_sources) config->setTacticSources(0);
        if (options->quick) shorten(*config);
        // TensorRT rounds f32 to ten bits where it multiplies, unless told: what was asked for is
        // the graph's own numbers.
        if (!options->fp16 && !options->int8) config->clearFlag(nvinfer1::BuilderFlag::kTF32);
#if NV_TENSORRT_MAJOR < 11
        std::unique_ptr<Calibrator> calibrator;
        if (options->fp16) config->setFlag(nvinfer1::BuilderFlag::kFP16);
        if (options->int8) calibrator = eightBits(*network, *config, *options);
#else
        if (options->fp16 || options->int8) throw Failure{"TensorRT 11 takes the precision from the graph"};
#endif
        auto cache = known(*config, options->timings);
        std::unique_ptr<nvinfer1::IHostMemory> plan(builder->buildSerializedNetwork(*network, *config));
        if (!plan) throw Failure{"TensorRT could not build the engine"};
        if (auto const* timed = config->getTimingCache()) {
            std::unique_ptr<nvinfer1::IHostMemory> timings(timed->serialize());
            if (timings) options->keep(options->user, 0, timings->data(), timings->size());
        }
        *length = plan->size();
        *blob = new char[plan->size()];
        std::memcpy(*blob, plan->data(), plan->size());
        plan.reset();
        config.reset();
        cache.reset();
        parser.reset();
        network.reset();
        builder.reset();
        cuda.release(number);
    });
}

API void plimsoll_trt_free(void* blob) { delete[] static_cast<char*>(blob); }
