// What is done on the device before and behind the model: the letterbox of `prepare` and the
// search of `decode`, to the bit. NVRTC compiles this when a model is opened on a GPU; the
// tests compile it as C and run it beside the Rust that it must equal.

static __device__ float lowest() { return __int_as_float(0xff800000); }

// One pixel between its four neighbours, in OpenCV's fixed point.
static __device__ int mix(int a, int b, int weights) {
    return (short)((a * (short)weights + b * (weights >> 16)) >> 4);
}

// frame: rows of `channels` bytes. columns: the left neighbour and both weights of each
// column; rows: both neighbours and both weights of each row. out: three planes.
extern "C" __global__ void letterbox(
    const unsigned char* frame, const int* columns, const int* rows, float* out,
    int frame_width, int channels, int blue_first,
    int fit_width, int fit_height, int pad_x, int pad_y, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    int column = x - pad_x, row = y - pad_y;
    bool inside = column >= 0 && column < fit_width && row >= 0 && row < fit_height;
    for (int plane = 0; plane < 3; plane++) {
        int byte = 114;
        if (inside) {
            int channel = channels == 1 ? 0 : blue_first ? 2 - plane : plane;
            int left = columns[2 * column], across = columns[2 * column + 1];
            int right = left + 1 < frame_width ? left + 1 : left;
            const unsigned char* above = frame + (size_t)rows[3 * row] * frame_width * channels;
            const unsigned char* below = frame + (size_t)rows[3 * row + 1] * frame_width * channels;
            int down = rows[3 * row + 2];
            int upper = mix(above[left * channels + channel], above[right * channels + channel], across);
            int lower = mix(below[left * channels + channel], below[right * channels + channel], across);
            int sum = (short)((upper * (short)down) >> 16) + (short)((lower * (down >> 16)) >> 16);
            byte = ((sum + 2) >> 2) & 255;
        }
        out[((size_t)plane * height + y) * width + x] = __fdiv_rn((float)byte, 255.0f);
    }
}

// raw: four rows of boxes and `classes` rows of scores, `places` each. out: the boxes, the
// best score and its class; minus infinity where a score is no finite number.
extern "C" __global__ void best(const float* raw, float* out, int classes, int places) {
    int place = blockIdx.x * blockDim.x + threadIdx.x;
    if (place >= places) return;
    const float* scores = raw + (size_t)4 * places + place;
    float most = lowest(), sum = 0.0f;
    int whose = 0;
    for (int class_ = 0; class_ < classes; class_++) {
        float score = scores[(size_t)class_ * places];
        if (score > most) {
            most = score;
            whose = class_;
        }
        sum = __fadd_rn(sum, score);
    }
    bool finite = sum - sum == 0.0f;
    for (int part = 0; part < 4; part++) {
        out[(size_t)part * places + place] = raw[(size_t)part * places + place];
    }
    out[(size_t)4 * places + place] = finite ? most : lowest();
    out[(size_t)5 * places + place] = (float)whose;
}
