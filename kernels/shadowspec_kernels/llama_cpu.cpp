// A pass of a Llama over a ragged cache, and a product, in float32 on a CPU, over weights that are float32, bfloat16 or
// int8.  Each weight is widened to float32 where it is multiplied, which is exact: the results are, bit for bit, those
// of the same weights in float32.
//
// A step reads every weight once, so that its time is that of the memory.  All threads work through the same list of
// phases.  A phase is a number of tasks.  Each thread has a share of them, side by side in the memory, and takes of the
// others' shares when it is through.  Every number of a result is summed in an order that depends on the sizes of the
// weights and of the context alone, so that the numbers of a row are the same, bit for bit, whatever other rows are in
// the pass and however many threads there are.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <omp.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16, TILE_OUTPUTS = 4, TILE_ROWS = 6;
#elif defined(__AVX__)
constexpr int LANES = 8, TILE_OUTPUTS = 2, TILE_ROWS = 6;
#else
constexpr int LANES = 4, TILE_OUTPUTS = 2, TILE_ROWS = 4;
#endif

constexpr int64_t MOST_OUTPUTS = 64;        // of a task
constexpr int64_t TASK_BYTES = 64 * 1024;   // of weights that a task reads
constexpr int64_t TASK_PRODUCTS = 1 << 20;  // of a task: some 20 microseconds
constexpr int64_t FEWEST_OUTPUTS = 16;      // of a task of many rows, whose states are read again by each task
constexpr int64_t BLOCK_ROWS = 24;          // whose states stay in the first cache, if they are short
constexpr int64_t MOST_QUERIES = 32;        // of a task, whose scores stay in the second cache at 8,000 columns
constexpr int64_t TILE_COLUMNS = 64;        // of keys or values, which stay in the first cache
constexpr int64_t TASKS_OF_THREAD = 4;      // of attention, at least, so that no thread waits long for another
constexpr int64_t AHEAD = 32 * 1024;        // bytes, in the memory's order, by which weights are prefetched
constexpr int64_t LINE = 64;                // bytes of a line of the cache
constexpr int64_t SCALED = 32;              // int8 weights that share a scale
constexpr int PATIENCE = 4096;              // pauses before a waiting thread does what another one has not ended
constexpr double LONG_WAIT = 0.5;           // of a call's time, that its thread waits for the team's last ...
constexpr double LEAST_WAIT = 3e-4;         // ... and seconds, both of which show that a neighbour has its core
constexpr double ALONE = 0.05;              // seconds for which a thread then works alone

typedef float Lanes __attribute__((vector_size(LANES * 4)));
typedef float AnyLanes __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t Integers __attribute__((vector_size(LANES * 4)));

inline Lanes load(const float* from) { return *reinterpret_cast<const AnyLanes*>(from); }
inline void store(float* to, Lanes lanes) { *reinterpret_cast<AnyLanes*>(to) = lanes; }
inline Lanes load_first(const float* from, int64_t count) {
    Lanes lanes = {};
    std::memcpy(&lanes, from, count * sizeof(float));
    return lanes;
}

typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));
typedef uint16_t AnyHalves __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
typedef int8_t AnyBytes __attribute__((vector_size(LANES), aligned(1), may_alias));

inline Lanes widen(Halves halves) { return (Lanes)(__builtin_convertvector(halves, Words) << 16); }

// GCC 12 would convert a number at a time.
inline Integers widen_bytes(const char* from) {
#if defined(__AVX512F__)
    return (Integers)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(__AVX2__)
    return (Integers)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#else
    return __builtin_convertvector(*reinterpret_cast<const AnyBytes*>(from), Integers);
#endif
}

// How a row of weights lies in memory, and how LANES of them are read.

struct Float32 {
    static constexpr int64_t BYTES = 4;  // of a weight
    static constexpr bool HAS_REST = true;  // whether a row may end within LANES weights
    static int64_t row_bytes(int64_t inputs) { return inputs * 4; }
    static Lanes read(const char* row, int64_t, int64_t k) { return load(reinterpret_cast<const float*>(row) + k); }
    static Lanes read_first(const char* row, int64_t k, int64_t count) {
        return load_first(reinterpret_cast<const float*>(row) + k, count);
    }
};

struct Bfloat16 {
    static constexpr int64_t BYTES = 2;
    static constexpr bool HAS_REST = true;
    static int64_t row_bytes(int64_t inputs) { return inputs * 2; }
    static Lanes read(const char* row, int64_t, int64_t k) {
        return widen(*reinterpret_cast<const AnyHalves*>(row + 2 * k));
    }
    static Lanes read_first(const char* row, int64_t k, int64_t count) {
        Halves halves = {};
        std::memcpy(&halves, row + 2 * k, 2 * count);
        return widen(halves);
    }
};

// SCALED weights share a scale, a bfloat16; a row's scales follow its weights.
struct Int8 {
    static constexpr int64_t BYTES = 1;
    static constexpr bool HAS_REST = false;  // rows are multiples of SCALED
    static int64_t row_bytes(int64_t inputs) { return inputs + inputs / SCALED * 2; }
    static Lanes read(const char* row, int64_t inputs, int64_t k) {
        uint16_t half;
        std::memcpy(&half, row + inputs + k / SCALED * 2, 2);
        const uint32_t word = static_cast<uint32_t>(half) << 16;
        float scale;
        std::memcpy(&scale, &word, 4);
        return __builtin_convertvector(widen_bytes(row + k), Lanes) * scale;
    }
};

// left * right + sum, rounded once where the processor can.  A compiler that chose for itself would choose for each number
// of rows, by the processor: GCC for AMD's Zen fuses the sums of some tiles and not of others, which round otherwise.
inline Lanes fused(Lanes left, Lanes right, Lanes sum) {
#if defined(__AVX512F__)
    return (Lanes)_mm512_fmadd_ps((__m512)left, (__m512)right, (__m512)sum);
#elif defined(__AVX2__) && defined(__FMA__)
    return (Lanes)_mm256_fmadd_ps((__m256)left, (__m256)right, (__m256)sum);
#else
    return left * right + sum;
#endif
}

// Lane i of the result is lane Place::of(i) of `left`, or from LANES on of `right`.
template <typename Place, int... I>
inline Lanes choose(Lanes left, Lanes right, std::integer_sequence<int, I...>) {
#if defined(__clang__)
    return __builtin_shufflevector(left, right, Place::of(I)...);
#else
    return __builtin_shuffle(left, right, Integers{Place::of(I)...});
#endif
}
template <typename Place>
inline Lanes choose(Lanes left, Lanes right) {
    return choose<Place>(left, right, std::make_integer_sequence<int, LANES>());
}

// Each group of WIDTH lanes of both, by halves: the sums of the left's halves, then those of the right's.
template <int WIDTH>
inline Lanes halve(Lanes left, Lanes right) {
    constexpr int HALF = WIDTH / 2;
    struct Lower {
        static constexpr int of(int i) { return i % WIDTH < HALF ? i : LANES + i; }
    };
    struct Upper {
        static constexpr int of(int i) { return i % WIDTH < HALF ? i + HALF : LANES + i - HALF; }
    };
    return choose<Lower>(left, right) + choose<Upper>(left, right);
}

// The sums of COUNT vectors' lanes, each by halves: those of vector i are lanes i * LANES / COUNT and following.
template <int COUNT, int WIDTH = LANES>
inline Lanes sums_of(Lanes* vectors) {
    if constexpr (WIDTH == 1) {
        return vectors[0];
    } else {
        constexpr int LEFT = COUNT > 1 ? COUNT / 2 : 1;
        for (int i = 0; i < LEFT; ++i) vectors[i] = halve<WIDTH>(vectors[i], vectors[COUNT > 1 ? i + LEFT : i]);
        return sums_of<LEFT, WIDTH / 2>(vectors);
    }
}
inline float sum(Lanes lanes) { return sums_of<1>(&lanes)[0]; }

// out[i] = the sum of vector i's lanes, as `sum` has it.
template <int COUNT>
inline void store_sums(Lanes* vectors, float* out) {
    struct First {
        static constexpr int of(int i) { return i % COUNT * (LANES / COUNT); }
    };
    const Lanes sums = sums_of<COUNT>(vectors), first = choose<First>(sums, sums);
    std::memcpy(out, &first, COUNT * sizeof(float));
}

// e^x, within 2 units in the last place for -87 <= x <= 88; below it is e^-87.
inline Lanes exponential(Lanes x) {
    const Lanes lowest = Lanes{} - 87.0f, highest = Lanes{} + 88.0f, rounding = Lanes{} + 12582912.0f;  // 1.5 * 2^23
    x = x < lowest ? lowest : x;
    x = x > highest ? highest : x;
    const Lanes shifted = x * 1.44269504088896341f + rounding;
    const Lanes whole = shifted - rounding;
    const Lanes rest = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
    Lanes series = Lanes{} + 1.9875691500e-4f;  // Cephes' polynomial
    series = series * rest + 1.3981999507e-3f;
    series = series * rest + 8.3334519073e-3f;
    series = series * rest + 4.1665795894e-2f;
    series = series * rest + 1.6666665459e-1f;
    series = series * rest + 5.0000001201e-1f;
    const Lanes value = series * rest * rest + rest + 1.0f;
    Integers bits, exponent;
    std::memcpy(&bits, &value, sizeof(bits));
    std::memcpy(&exponent, &shifted, sizeof(exponent));
    bits += exponent << 23;
    Lanes result;
    std::memcpy(&result, &bits, sizeof(result));
    return result;
}

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

// ---- Threads ----

struct Counter {
    alignas(64) std::atomic<int64_t> value{0};
};

// What the threads of one call share.
struct Plan {
    int64_t threads;
    std::vector<Counter> begun;                  // of each phase, the tasks of each thread's share
    std::vector<Counter> ended;                  // of each phase
    std::vector<std::atomic<uint8_t>> is_ended;  // of all tasks of all phases
    Plan(int64_t threads, int64_t phases, int64_t tasks)
        : threads(threads), begun(phases * threads), ended(phases), is_ended(tasks) {}
};

// One thread's place in the plan.  The operating system may take its core from a thread in the middle of a task for
// milliseconds.  So a task leaves its result in the thread's buffer, and the first thread that has one commits it: a
// thread that waits in vain does the task once more, and the late result is dropped.  What a late thread has read
// meanwhile may have changed, which does not matter for the same reason.
class Worker {
  public:
    explicit Worker(Plan& plan) : plan_(plan) {}

    template <typename Compute, typename Commit>
    void share(int64_t tasks, Compute compute, Commit commit) {
        Counter* const begun = plan_.begun.data() + phase_ * plan_.threads;
        std::atomic<int64_t>& ended = plan_.ended[phase_++].value;
        std::atomic<uint8_t>* const is_ended = plan_.is_ended.data() + first_;
        first_ += tasks;
        const auto finish = [&](int64_t task) {
            compute(task);
            if (!is_ended[task].exchange(1, std::memory_order_acq_rel)) {
                commit(task);
                ended.fetch_add(1, std::memory_order_release);
            }
        };
        for (int64_t i = 0; i < plan_.threads; ++i) {
            const int64_t share = (number_ + i) % plan_.threads;
            const int64_t from = tasks * share / plan_.threads, to = tasks * (share + 1) / plan_.threads;
            for (int64_t task; (task = from + begun[share].value.fetch_add(1, std::memory_order_relaxed)) < to;)
                finish(task);
        }
        for (int waited = 0; ended.load(std::memory_order_acquire) < tasks; pause()) {
            if (++waited < PATIENCE) continue;
            waited = 0;
            for (int64_t task = 0; task < tasks; ++task)
                if (!is_ended[task].load(std::memory_order_relaxed)) finish(task);
        }
    }

  private:
    Plan& plan_;
    const int64_t number_ = omp_get_thread_num();
    int64_t phase_ = 0, first_ = 0;
};

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Runs `work` on a team of threads.  A team ends with its last thread.  If the operating system gives that thread's core
// to a neighbour, a short call waits for milliseconds, many times its length.  So after such a wait this thread works
// alone for a while, as fast as one thread can, and then tries the team again.
template <typename Work>
void run_team(int threads, Work work) {
    static thread_local double alone_until = 0.0;
    const double begun = seconds();
    if (begun < alone_until) threads = 1;
    double done = begun;
#pragma omp parallel num_threads(threads)
    {
        work();
        if (omp_get_thread_num() == 0) done = seconds();
    }
    const double ended = seconds();
    if (threads > 1 && ended - done > LONG_WAIT * (done - begun) && ended - done > LEAST_WAIT) alone_until = ended + ALONE;
}

// ---- Products ----

// Outputs of ROWS rows with OUTPUTS rows of weights.  Each is summed in LANES partial sums, from its first to its last
// input, then these by halves.  The first rows that read weights prefetch those that follow, in the memory's order and
// into the second cache: both matter, on an AMD EPYC for a third of the time.
template <typename Weights, int OUTPUTS, int ROWS, bool IS_FIRST>
inline void tile(const char* weight, int64_t inputs, const float* states, float* out, int64_t out_row) {
    const int64_t row_bytes = Weights::row_bytes(inputs);
    Lanes sums[ROWS * OUTPUTS] = {};  // in registers only where each loop over them is unrolled
    int64_t k = 0;
    for (; k + LANES <= inputs; k += LANES) {
        Lanes weights[OUTPUTS];
        for (int o = 0; o < OUTPUTS; ++o) {
            const int64_t offset = o * LANES * Weights::BYTES;
            if (IS_FIRST && offset % LINE == 0)
                __builtin_prefetch(weight + AHEAD + k * OUTPUTS * Weights::BYTES + offset, 0, 2);
            weights[o] = Weights::read(weight + o * row_bytes, inputs, k);
        }
        for (int r = 0; r < ROWS; ++r) {
            const Lanes state = load(states + r * inputs + k);
            for (int o = 0; o < OUTPUTS; ++o) sums[r * OUTPUTS + o] = fused(weights[o], state, sums[r * OUTPUTS + o]);
        }
    }
    if constexpr (Weights::HAS_REST) {
        if (k < inputs) {
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; ++r) {
                const Lanes state = load_first(states + r * inputs + k, inputs - k);
#pragma GCC unroll 8
                for (int o = 0; o < OUTPUTS; ++o) {
                    const Lanes last = Weights::read_first(weight + o * row_bytes, k, inputs - k);
                    sums[r * OUTPUTS + o] = fused(last, state, sums[r * OUTPUTS + o]);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
        Lanes row[OUTPUTS];
#pragma GCC unroll 8
        for (int o = 0; o < OUTPUTS; ++o) row[o] = sums[r * OUTPUTS + o];
        store_sums<OUTPUTS>(row, out + r * out_row);
    }
}

template <typename Weights, int OUTPUTS, bool IS_FIRST>
inline void tile_rows(int rows, const char* weight, int64_t inputs, const float* states, float* out, int64_t out_row) {
    switch (rows) {
        case 1: return tile<Weights, OUTPUTS, 1, IS_FIRST>(weight, inputs, states, out, out_row);
        case 2: return tile<Weights, OUTPUTS, 2, IS_FIRST>(weight, inputs, states, out, out_row);
        case 3: return tile<Weights, OUTPUTS, 3, IS_FIRST>(weight, inputs, states, out, out_row);
        case 4: return tile<Weights, OUTPUTS, 4, IS_FIRST>(weight, inputs, states, out, out_row);
        case 5: return tile<Weights, OUTPUTS, 5, IS_FIRST>(weight, inputs, states, out, out_row);
        default: return tile<Weights, OUTPUTS, 6, IS_FIRST>(weight, inputs, states, out, out_row);
    }
}

// out[rows][MOST_OUTPUTS] = states [rows][inputs] times weight [outputs][inputs], transposed.
template <typename Weights>
void multiply(const char* weight, int64_t inputs, int64_t outputs, const float* states, int64_t rows, float* out) {
    const int64_t row_bytes = Weights::row_bytes(inputs);
    for (int64_t block = 0; block < rows; block += BLOCK_ROWS) {
        const int64_t end = std::min(rows, block + BLOCK_ROWS), groups = (end - block + TILE_ROWS - 1) / TILE_ROWS;
        for (int64_t o = 0; o < outputs; o += TILE_OUTPUTS) {
            const char* const first = weight + o * row_bytes;
            for (int64_t group = 0; group < groups; ++group) {
                const int64_t from = block + (end - block) * group / groups;
                const int64_t to = block + (end - block) * (group + 1) / groups;
                const float* const given = states + from * inputs;
                float* const result = out + from * MOST_OUTPUTS + o;
                if (o + TILE_OUTPUTS > outputs) {
                    for (int64_t i = 0; i < outputs - o; ++i)
                        tile_rows<Weights, 1, false>(to - from, first + i * row_bytes, inputs, given, result + i,
                                                     MOST_OUTPUTS);
                } else if (block + group == 0) {
                    tile_rows<Weights, TILE_OUTPUTS, true>(to - from, first, inputs, given, result, MOST_OUTPUTS);
                } else {
                    tile_rows<Weights, TILE_OUTPUTS, false>(to - from, first, inputs, given, result, MOST_OUTPUTS);
                }
            }
        }
    }
}

// How the outputs of a product are divided among tasks.
struct Division {
    int64_t outputs, each, tasks;
    Division(int64_t outputs, int64_t inputs, int64_t rows, int64_t row_bytes) : outputs(outputs) {
        const int64_t fitting = std::min(TASK_BYTES / row_bytes, std::max(TASK_PRODUCTS / (inputs * rows), FEWEST_OUTPUTS));
        each = std::clamp(fitting / TILE_OUTPUTS * TILE_OUTPUTS, int64_t{TILE_OUTPUTS}, MOST_OUTPUTS);
        tasks = (outputs + each - 1) / each;
    }
    int64_t from(int64_t task) const { return task * each; }
    int64_t to(int64_t task) const { return std::min(outputs, (task + 1) * each); }
};

// One thread's memory, which only grows.
struct Scratch {
    std::vector<float> normed, out, scores;
    static Scratch& of_thread() {
        static thread_local Scratch scratch;
        return scratch;
    }
};

inline float* at_least(std::vector<float>& memory, int64_t size) {
    if (static_cast<int64_t>(memory.size()) < size) memory.resize(size);
    return memory.data();
}

template <typename Weights, typename Write>
void share_product(Worker& worker, const char* weight, int64_t inputs, int64_t outputs, const float* states,
                   int64_t rows, Write write) {
    const int64_t row_bytes = Weights::row_bytes(inputs);
    const Division division(outputs, inputs, rows, row_bytes);
    float* const out = at_least(Scratch::of_thread().out, rows * MOST_OUTPUTS);
    worker.share(
        division.tasks,
        [&](int64_t task) {
            const int64_t from = division.from(task);
            multiply<Weights>(weight + from * row_bytes, inputs, division.to(task) - from, states, rows, out);
        },
        [&](int64_t task) {
            const int64_t from = division.from(task), to = division.to(task);
            for (int64_t r = 0; r < rows; ++r) write(r, from, to, out + r * MOST_OUTPUTS);
        });
}

}  // namespace

extern "C" {

// Weights of one layer, as `shadowspec_kernels.llama_cpu` describes them.
struct Layer {
    const float* attention_norm;  // [hidden]
    const char* qkv;              // [(heads + 2 * kv_heads) * head_dim, hidden]
    const float* qkv_bias;        // [(heads + 2 * kv_heads) * head_dim], or null
    const float* query_norm;      // [head_dim], or null
    const float* key_norm;        // [head_dim], or null
    const char* output;           // [hidden, heads * head_dim]
    const float* mlp_norm;        // [hidden]
    const char* gate_up;          // [2 * intermediate, hidden]
    const char* down;             // [hidden, intermediate]
};

struct Model {
    int64_t num_layers, hidden, heads, kv_heads, head_dim, intermediate, vocabulary;
    int64_t format;           // of all weights of products: 0 Float32, 1 Bfloat16, 2 Int8
    float floor, head_floor;  // size times epsilon, of the norms of hidden states and of heads
    const Layer* layers;
    const float* final_norm;  // [hidden]
    const char* head;         // [vocabulary, hidden]
};

struct Pass {
    int64_t rows, count, keep, width, slot_stride, head_stride, column_stride, threads;
    const int64_t* columns;      // [rows, count]
    const float* angles;         // [rows, count, head_dim / 2, 2]: cosine, sine
    float* const* caches;        // of each layer [rows, 2 * kv_heads, columns, head_dim], by its strides
    float* hidden;               // [rows, count, hidden], changed
    float* const* layer_inputs;  // of each layer [rows, count, hidden], or null where it is not wanted; or null
    float* final_states;         // [rows, keep, hidden], or null
    float* logits;               // [rows, keep, vocabulary]
};

}  // extern "C"

namespace {

// x / sqrt(sum(x^2) + floor) * weight, where weight is sqrt(size) times the norm's.
void norm(const float* states, const float* weight, int64_t size, float floor, float* out) {
    Lanes squares = {};
    int64_t k = 0;
    for (; k + LANES <= size; k += LANES) squares += load(states + k) * load(states + k);
    if (k < size) {
        const Lanes last = load_first(states + k, size - k);
        squares += last * last;
    }
    const float length = std::sqrt(sum(squares) + floor);
    for (k = 0; k < size; ++k) out[k] = states[k] / length * weight[k];
}

void turn(float* head, const float* angles, int64_t head_dim) {
    for (int64_t k = 0; k < head_dim; k += 2) {
        const float x = head[k], y = head[k + 1], cosine = angles[k], sine = angles[k + 1];
        head[k] = x * cosine - y * sine;
        head[k + 1] = x * sine + y * cosine;
    }
}

// COUNT products of a query with keys, `stride` numbers apart.
template <int COUNT>
inline void dots(const float* query, const float* keys, int64_t stride, int64_t head_dim, float* out) {
    Lanes products[COUNT] = {};
    int64_t k = 0;
    for (; k + LANES <= head_dim; k += LANES)
        for (int i = 0; i < COUNT; ++i) products[i] = fused(load(query + k), load(keys + i * stride + k), products[i]);
    if (k < head_dim)
        for (int i = 0; i < COUNT; ++i)
            products[i] = fused(load_first(query + k, head_dim - k), load_first(keys + i * stride + k, head_dim - k),
                                products[i]);
    store_sums<COUNT>(products, out);
}

// Adds to COUNT vectors of `out` the sum of so many values' rows by their weights.
template <int COUNT>
inline void mix(const float* weights, const float* values, int64_t stride, int64_t number, float* out) {
    Lanes sums[COUNT];
    for (int i = 0; i < COUNT; ++i) sums[i] = load(out + i * LANES);
    for (int64_t column = 0; column < number; ++column)
        for (int i = 0; i < COUNT; ++i)
            sums[i] = fused(Lanes{} + weights[column], load(values + column * stride + i * LANES), sums[i]);
    for (int i = 0; i < COUNT; ++i) store(out + i * LANES, sums[i]);
}

// Scores become weights, e^(score * scale - the highest); returns 1 / their sum.
float soften(float* scores, int64_t seen, float scale) {
    Lanes highest = Lanes{} - INFINITY, totals = {};
    for (int64_t column = 0; column < seen; column += LANES) {
        const int64_t count = std::min<int64_t>(LANES, seen - column);
        for (int64_t i = count; i < LANES; ++i) scores[column + i] = -INFINITY;  // the memory is of whole vectors
        const Lanes scaled = load(scores + column) * scale;
        highest = scaled > highest ? scaled : highest;
        store(scores + column, scaled);
    }
    float most = highest[0];
    for (int i = 1; i < LANES; ++i) most = std::max(most, highest[i]);
    for (int64_t column = 0; column < seen; column += LANES) {
        const Lanes weights = exponential(load(scores + column) - most);
        store(scores + column, weights);
        totals += column + LANES > seen ? load_first(scores + column, seen - column) : weights;
    }
    return 1.0f / sum(totals);
}

// `count` queries over keys and values that they share, each over the first `seen` columns.  All of them read a tile of
// keys or values while it is in the nearest cache: a step of several tokens over a long context takes the time in which
// the context is read once.  A query's sums are in the columns' order, whatever others are beside it.
void attend(const float* const* queries, const int64_t* seen, int64_t count, const float* keys, const float* values,
            int64_t stride, int64_t head_dim, float* out) {
    const int64_t longest = *std::max_element(seen, seen + count), padded = (longest + LANES - 1) / LANES * LANES;
    float* const scores = at_least(Scratch::of_thread().scores, count * padded);
    const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    for (int64_t from = 0; from < longest; from += TILE_COLUMNS)
        for (int64_t q = 0; q < count; ++q) {
            const int64_t to = std::min(from + TILE_COLUMNS, seen[q]);
            int64_t column = from;
            for (; column + LANES <= to; column += LANES)
                dots<LANES>(queries[q], keys + column * stride, stride, head_dim, scores + q * padded + column);
            for (; column < to; ++column)
                dots<1>(queries[q], keys + column * stride, stride, head_dim, scores + q * padded + column);
        }
    float inverse[MOST_QUERIES];
    for (int64_t q = 0; q < count; ++q) inverse[q] = soften(scores + q * padded, seen[q], scale);
    std::memset(out, 0, count * head_dim * sizeof(float));
    for (int64_t from = 0; from < longest; from += TILE_COLUMNS)
        for (int64_t q = 0; q < count; ++q) {
            const int64_t number = std::min(TILE_COLUMNS, seen[q] - from);
            const float* const weights = scores + q * padded + from;
            const float* const rows = values + from * stride;
            float* const mixed = out + q * head_dim;
            int64_t k = 0;
            for (; k + 8 * LANES <= head_dim; k += 8 * LANES) mix<8>(weights, rows + k, stride, number, mixed + k);
            for (; k + LANES <= head_dim; k += LANES) mix<1>(weights, rows + k, stride, number, mixed + k);
            if (k < head_dim) {
                Lanes sums = load_first(mixed + k, head_dim - k);
                for (int64_t column = 0; column < number; ++column)
                    sums = fused(Lanes{} + weights[column], load_first(rows + column * stride + k, head_dim - k), sums);
                std::memcpy(mixed + k, &sums, (head_dim - k) * sizeof(float));
            }
        }
    for (int64_t q = 0; q < count; ++q)
        for (int64_t k = 0; k < head_dim; ++k) out[q * head_dim + k] *= inverse[q];
}

// out[k] = gate[k] / (1 + e^-gate[k]) * up[k]
void gate(const float* gates, const float* ups, int64_t size, float* out) {
    for (int64_t k = 0; k < size; k += LANES) {
        const int64_t count = std::min<int64_t>(LANES, size - k);
        const Lanes gates_here = load_first(gates + k, count);
        const Lanes gated = gates_here / (1.0f + exponential(-gates_here)) * load_first(ups + k, count);
        std::memcpy(out + k, &gated, count * sizeof(float));
    }
}

// Memory that the threads of a call share.
struct Shared {
    std::vector<float> mixed, attended, activated;
};

// Tasks among which the queries of a row that share keys are divided, so that each thread has some.
int64_t num_parts(const Pass& pass, int64_t keep, int64_t heads, int64_t kv_heads) {
    const int64_t queries = keep * (heads / kv_heads), wanted = TASKS_OF_THREAD * pass.threads;
    const int64_t for_memory = (queries + MOST_QUERIES - 1) / MOST_QUERIES;
    const int64_t for_threads = (wanted + pass.rows * kv_heads - 1) / (pass.rows * kv_heads);
    return std::min(queries, std::max(for_memory, for_threads));
}

template <typename Weights>
void run_thread(const Model& model, const Pass& pass, Plan& plan, Shared& shared) {
    Worker worker(plan);
    Scratch& scratch = Scratch::of_thread();
    const int64_t hidden = model.hidden, head_dim = model.head_dim, heads = model.heads, kv_heads = model.kv_heads;
    const int64_t rows = pass.rows * pass.count, num_mixed = (heads + 2 * kv_heads) * head_dim;
    const int64_t group = heads / kv_heads, attended_size = heads * head_dim, intermediate = model.intermediate;
    float* const normed = at_least(scratch.normed, rows * hidden);
    float* const mixed = shared.mixed.data();
    float* const attended = shared.attended.data();
    float* const activated = shared.activated.data();
    // Past the last layer's keys and values only the kept columns matter.
    int64_t keep = pass.count;
    const auto row_of = [&](int64_t kept) { return kept / keep * pass.count + pass.count - keep + kept % keep; };
    // Each thread for itself, which is less work than to wait for another one.
    const auto norm_rows = [&](const float* weight, int64_t count) {
        for (int64_t r = 0; r < count; ++r)
            norm(pass.hidden + row_of(r) * hidden, weight, hidden, model.floor, normed + r * hidden);
    };
    const auto add = [&](int64_t r, int64_t from, int64_t to, const float* out) {
        float* const row = pass.hidden + row_of(r) * hidden;
        for (int64_t o = from; o < to; ++o) row[o] += out[o - from];
    };
    const auto nothing = [](int64_t) {};

    for (int64_t index = 0; index < model.num_layers; ++index) {
        const Layer& layer = model.layers[index];
        float* const cache = pass.caches[index];
        if (pass.layer_inputs && pass.layer_inputs[index])
            worker.share(1, nothing, [&](int64_t) {
                std::memcpy(pass.layer_inputs[index], pass.hidden, rows * hidden * sizeof(float));
            });
        norm_rows(layer.attention_norm, rows);
        share_product<Weights>(worker, layer.qkv, hidden, num_mixed, normed, rows,
                      [&](int64_t r, int64_t from, int64_t to, const float* out) {
                          std::memcpy(mixed + r * num_mixed + from, out, (to - from) * sizeof(float));
                      });

        float* const token = at_least(scratch.out, num_mixed);
        worker.share(
            rows,
            [&](int64_t r) {
                for (int64_t k = 0; k < num_mixed; ++k)
                    token[k] = mixed[r * num_mixed + k] + (layer.qkv_bias ? layer.qkv_bias[k] : 0.0f);
                for (int64_t head = 0; head < heads + kv_heads; ++head) {
                    float* const states = token + head * head_dim;
                    const float* const weight = head < heads ? layer.query_norm : layer.key_norm;
                    if (weight) norm(states, weight, head_dim, model.head_floor, states);
                    turn(states, pass.angles + r * head_dim, head_dim);
                }
            },
            [&](int64_t r) {
                std::memcpy(mixed + r * num_mixed, token, attended_size * sizeof(float));
                float* place = cache + r / pass.count * pass.slot_stride + pass.columns[r] * pass.column_stride;
                for (int64_t head = 0; head < 2 * kv_heads; ++head, place += pass.head_stride)
                    std::memcpy(place, token + (heads + head) * head_dim, head_dim * sizeof(float));
            });

        if (index + 1 == model.num_layers) keep = pass.keep;
        const int64_t kept_rows = pass.rows * keep;
        // A task is some queries of a row that share keys: token by token, those of all heads of the group.
        float* const looked = at_least(scratch.out, MOST_QUERIES * head_dim);
        const int64_t of_heads = keep * group, parts = num_parts(pass, keep, heads, kv_heads);
        const auto place_of = [&](int64_t task, int64_t query) {  // kept row and head
            const int64_t row = task / parts / kv_heads, head = task / parts % kv_heads;
            return std::pair(row * keep + query / group, head * group + query % group);
        };
        const auto from_of = [&](int64_t task) { return of_heads * (task % parts) / parts; };
        const auto to_of = [&](int64_t task) { return of_heads * (task % parts + 1) / parts; };
        worker.share(
            pass.rows * kv_heads * parts,
            [&](int64_t task) {
                const float* queries[MOST_QUERIES];
                int64_t seen[MOST_QUERIES];
                for (int64_t query = from_of(task), q = 0; query < to_of(task); ++query, ++q) {
                    const auto [kept, head] = place_of(task, query);
                    queries[q] = mixed + row_of(kept) * num_mixed + head * head_dim;
                    seen[q] = std::min(pass.columns[row_of(kept)] + 1, pass.width);
                }
                const float* const keys = cache + task / parts / kv_heads * pass.slot_stride +
                                          task / parts % kv_heads * pass.head_stride;
                attend(queries, seen, to_of(task) - from_of(task), keys, keys + kv_heads * pass.head_stride,
                       pass.column_stride, head_dim, looked);
            },
            [&](int64_t task) {
                for (int64_t query = from_of(task), q = 0; query < to_of(task); ++query, ++q) {
                    const auto [kept, head] = place_of(task, query);
                    std::memcpy(attended + (kept * heads + head) * head_dim, looked + q * head_dim,
                                head_dim * sizeof(float));
                }
            });

        share_product<Weights>(worker, layer.output, attended_size, hidden, attended, kept_rows, add);

        norm_rows(layer.mlp_norm, kept_rows);
        const int64_t row_bytes = Weights::row_bytes(hidden);
        const Division division(intermediate, 2 * hidden, kept_rows, 2 * row_bytes);
        float* const gates = at_least(scratch.out, 2 * kept_rows * MOST_OUTPUTS);
        float* const ups = gates + kept_rows * MOST_OUTPUTS;
        worker.share(
            division.tasks,
            [&](int64_t task) {
                const int64_t from = division.from(task), count = division.to(task) - from;
                multiply<Weights>(layer.gate_up + from * row_bytes, hidden, count, normed, kept_rows, gates);
                multiply<Weights>(layer.gate_up + (intermediate + from) * row_bytes, hidden, count, normed, kept_rows, ups);
                for (int64_t r = 0; r < kept_rows; ++r)
                    gate(gates + r * MOST_OUTPUTS, ups + r * MOST_OUTPUTS, count, gates + r * MOST_OUTPUTS);
            },
            [&](int64_t task) {
                const int64_t from = division.from(task), count = division.to(task) - from;
                for (int64_t r = 0; r < kept_rows; ++r)
                    std::memcpy(activated + r * intermediate + from, gates + r * MOST_OUTPUTS, count * sizeof(float));
            });

        share_product<Weights>(worker, layer.down, intermediate, hidden, activated, kept_rows, add);
    }

    const int64_t kept_rows = pass.rows * keep;
    norm_rows(model.final_norm, kept_rows);
    if (pass.final_states)
        worker.share(1, nothing, [&](int64_t) {
            std::memcpy(pass.final_states, normed, kept_rows * hidden * sizeof(float));
        });
    share_product<Weights>(worker, model.head, hidden, model.vocabulary, normed, kept_rows,
                  [&](int64_t r, int64_t from, int64_t to, const float* out) {
                      std::memcpy(pass.logits + r * model.vocabulary + from, out, (to - from) * sizeof(float));
                  });
}

template <typename Run>
void with_format(int64_t format, Run run) {
    if (format == 2) return run(Int8{});
    if (format == 1) return run(Bfloat16{});
    run(Float32{});
}

}  // namespace

extern "C" {

// Numbers of one vector, by which the build is named.
int shadowspec_lanes() { return LANES; }

// `llama_reference.llama_pass`.
void shadowspec_pass(const Model* model, const Pass* pass) {
    with_format(model->format, [&](auto weights) {
        using Weights = decltype(weights);
        const int64_t rows = pass->rows * pass->count;
        const int64_t num_mixed = (model->heads + 2 * model->kv_heads) * model->head_dim;
        static thread_local Shared shared;
        at_least(shared.mixed, rows * num_mixed);
        at_least(shared.attended, rows * model->heads * model->head_dim);
        at_least(shared.activated, rows * model->intermediate);
        // Upper bounds: with fewer rows tasks have more outputs.
        const auto tasks = [&](int64_t outputs, int64_t inputs, int64_t row_bytes) {
            return Division(outputs, inputs, rows, row_bytes).tasks;
        };
        const auto of_product = [&](int64_t outputs, int64_t inputs) {
            return tasks(outputs, inputs, Weights::row_bytes(inputs));
        };
        const int64_t hidden = model->hidden, intermediate = model->intermediate;
        const int64_t of_layer = 1 + of_product(num_mixed, hidden) + rows + rows * model->heads +
                                 of_product(hidden, model->heads * model->head_dim) +
                                 tasks(intermediate, 2 * hidden, 2 * Weights::row_bytes(hidden)) +
                                 of_product(hidden, intermediate);
        Plan plan(pass->threads, 7 * model->num_layers + 2,
                  of_layer * model->num_layers + 1 + of_product(model->vocabulary, hidden));
        Shared* const memory = &shared;
        run_team(static_cast<int>(pass->threads), [&] { run_thread<Weights>(*model, *pass, plan, *memory); });
    });
}

// `llama_reference.product`: out [rows, outputs], whose rows lie `out_row` numbers apart, is states [rows, inputs] times
// weight [outputs, inputs], transposed, or has it added.
void shadowspec_product(const char* weight, int64_t format, int64_t inputs, int64_t outputs, const float* states,
                        int64_t rows, float* out, int64_t out_row, int is_added, int threads) {
    with_format(format, [&](auto weights) {
        using Weights = decltype(weights);
        Plan plan(threads, 1, Division(outputs, inputs, rows, Weights::row_bytes(inputs)).tasks);
        run_team(threads, [&] {
            Worker worker(plan);
            share_product<Weights>(worker, weight, inputs, outputs, states, rows,
                                   [&](int64_t r, int64_t from, int64_t to, const float* result) {
                                       float* const row = out + r * out_row;
                                       for (int64_t o = from; o < to; ++o)
                                           row[o] = (is_added ? row[o] : 0.0f) + result[o - from];
                                   });
        });
    });
}

}  // extern "C"
