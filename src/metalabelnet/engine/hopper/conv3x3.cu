// 3x3 convolutions with a border of zeros: bfloat16, channels last, sums in float32, for tensor cores of compute
// capability 9.0.
//
// The pixels of a tile lie in shared memory with a border of one, a pixel's 64 channels as a row of 128 bytes, and are
// brought there once. A patch of 8x8 pixels is a matrix of 64 rows, and that of another tap is the same memory from
// another row on: no pixel is read nine times from outside. The hardware swizzles the 16-byte pieces of a row by its
// address, which is right wherever a matrix begins.
__device__ __forceinline__ void bring_box(u32 to, const Map* from, int channel, int tap, int output, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
        "[%5];" ::"r"(to), "l"(from), "r"(channel), "r"(tap), "r"(output), "r"(barrier) : "memory");
}
__device__ __forceinline__ u32 two(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ __forceinline__ void store16(void* to, const u32* v) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}
// Two lanes add up twice `left` numbers each, and each goes on with half of them: from which on, is what comes back.
template <int left> __device__ __forceinline__ int fold(float* numbers, int lane, int apart) {
    const bool upper = lane & apart;
#pragma unroll
    for (int i = 0; i < left; i++) {
        const float low = numbers[i], high = numbers[i + left];
        numbers[i] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, apart);
    }
    return upper ? left : 0;
}

// HEIGHT, WIDTH, IN, OUT   of the images
// N                        outputs of a block
// GROUPS                   warpgroups, each with tiles of its own
// ROWS, COLUMNS            of a tile, multiples of eight
// STAGES                   parts of the weights (a tap, 64 channels) that are there at a time; all of them: they stay
// BUFFERS                  tiles of a warpgroup that are there at a time
// BACK                     from the gradient by what comes out of a convolution to that by what went in: the weights are
//                          those of that convolution, from IN outputs to OUT inputs
// TOTALS                   whether to add up each output, and its squares, over the pixels of a block
template <int HEIGHT, int WIDTH, int IN, int OUT, int N, int GROUPS, int ROWS, int COLUMNS, int STAGES, int BUFFERS,
          bool BACK, bool TOTALS>
__global__ void __launch_bounds__(GROUPS * 128)
    conv3x3(const __grid_constant__ Map x, const __grid_constant__ Map weights, u16* __restrict__ y,
            float* __restrict__ totals, int images) {
    constexpr int PANELS = (IN + 63) / 64, LAST = (IN - (PANELS - 1) * 64 + 15) / 16, PARTS = 9 * PANELS;
    constexpr int PITCH = COLUMNS + 2, PIXELS = (ROWS + 2) * PITCH, ACROSS = WIDTH / COLUMNS, DOWN = HEIGHT / ROWS;
    constexpr int PATCHES = ROWS * COLUMNS / 64;
    constexpr u32 PANEL = (PIXELS * 128 + 1023) / 1024 * 1024, TILE = PANELS * PANEL;
    constexpr u32 PART = BACK ? (N + 63) / 64 * 8192 : N * 128;
    constexpr bool STAY = STAGES == PARTS;
    extern __shared__ u8 shared[];
    const u32 tiles_at = ((u32)__cvta_generic_to_shared(shared) + 1023) / 1024 * 1024;
    const u32 weights_at = tiles_at + GROUPS * BUFFERS * TILE, barriers = weights_at + STAGES * PART;
    const u32 weights_here = barriers, weights_done = barriers + 8 * STAGES, tile_here = barriers + 16 * STAGES;
    const int thread = threadIdx.x, group = __shfl_sync(~0u, thread / 128, 0), lane = thread % 32;
    const int tiles = images * DOWN * ACROSS, step = gridDim.x * GROUPS, turns = (tiles + step - 1) / step;
    const bool leads = thread % 128 == 0;

    if (thread == 0) expect_map(&x), expect_map(&weights);
    if (thread < STAGES) {
        barrier_init(weights_here + 8 * thread, 1);
        barrier_init(weights_done + 8 * thread, GROUPS > 1 ? GROUPS - 1 : 1);
    }
    if (thread < GROUPS * BUFFERS) barrier_init(tile_here + 8 * thread, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();

    const u32 mine = tiles_at + group * BUFFERS * TILE, here = tile_here + group * BUFFERS * 8;
    auto bring_tile = [&](int turn) {
        const int tile = turn * step + blockIdx.x * GROUPS + group, buffer = turn % BUFFERS;
        if (tile >= tiles || !leads) return;
        expect(here + 8 * buffer, PANELS * PIXELS * 128);
        for (int panel = 0; panel < PANELS; panel++)  // beyond the border the hardware puts zeros
            bring_box(mine + buffer * TILE + panel * PANEL, &x, panel * 64, tile % ACROSS * COLUMNS - 1,
                      tile / ACROSS % DOWN * ROWS - 1, tile / (DOWN * ACROSS), here + 8 * buffer);
    };
    auto bring_weights = [&](int slot, int part) {
        const int tap = part / PANELS, channel = part % PANELS * 64, output = blockIdx.y * N;
        const u32 to = weights_at + slot * PART, barrier = weights_here + 8 * slot;
        expect(barrier, PART);
        if (BACK)
            for (int panel = 0; panel < (N + 63) / 64; panel++)
                bring_box(to + panel * 8192, &weights, output + panel * 64, 8 - tap, channel, barrier);
        else
            bring_box(to, &weights, channel, tap, output, barrier);
    };
    for (int turn = 0; turn < BUFFERS; turn++) bring_tile(turn);
    if (thread == 0)
        for (int part = 0; part < STAGES; part++) bring_weights(part, part);

    int slot = 0, round = 0;
    // The part before the one in `slot` is done with. Once all groups say so, a later one takes its place.
    auto next_weights = [&](int done) {
        if (!leads) return;
        const int free = slot ? slot - 1 : STAGES - 1;
        if (GROUPS > 1 && thread) arrive(weights_done + 8 * free);
        if (thread || done + STAGES >= turns * PARTS) return;
        if (GROUPS > 1) wait(weights_done + 8 * free, done / STAGES & 1);
        bring_weights(free, (done + STAGES) % PARTS);
    };

    constexpr int SUMS = (N / 2 + 7) / 8 * 8;  // of this lane: for each of its outputs a total and one of squares
    float total[TOTALS ? SUMS : 1] = {};
    for (int turn = 0; turn < turns; turn++) {
        const int tile = turn * step + blockIdx.x * GROUPS + group, buffer = turn % BUFFERS;
        if (STAY && tile >= tiles) break;
        float sums[PATCHES][N / 2];
        const u64 a = matrix(mine + buffer * TILE, PITCH * 128);
        if (tile < tiles) wait(here + 8 * buffer, turn / BUFFERS & 1);
#pragma unroll 1
        for (int tap = 0; tap < 9; tap++)
#pragma unroll
            for (int panel = 0; panel < PANELS; panel++) {
                if (STAY) slot = tap * PANELS + panel;
                if (!STAY || turn == 0) wait(weights_here + 8 * slot, STAY ? 0 : round & 1);
                const u64 from = a + (tap / 3 * PITCH + tap % 3) * 8 + panel * (PANEL / 16);
                const u64 b = matrix(weights_at + slot * PART, 1024, 8192);
                mma_begin();
#pragma unroll
                for (int k = 0; k < (panel == PANELS - 1 ? LAST : 4); k++)
#pragma unroll
                    for (int m = 0; m < PATCHES; m++)
                        mma(tap + panel + k > 0, sums[m],
                            from + (m / (COLUMNS / 8) * PITCH + m % (COLUMNS / 8)) * 64 + 2 * k,
                            b + (BACK ? 128 : 2) * k);
                mma_end();
                if (!STAY) {
                    mma_wait<1>();
                    if (tap + panel > 0) next_weights(turn * PARTS + tap * PANELS + panel - 1);
                    if (++slot == STAGES) slot = 0, round++;
                }
            }
        mma_wait<0>();
        if (!STAY) next_weights(turn * PARTS + PARTS - 1);
        if (turn + BUFFERS < turns) {
            sync_group(group);
            bring_tile(turn + BUFFERS);
        }
        if (tile >= tiles) break;

        const int quarter = lane % 4;
#pragma unroll
        for (int m = 0; m < PATCHES; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = tile / ACROSS % DOWN * ROWS + m / (COLUMNS / 8) * 8 + thread % 128 / 32 * 2 + half;
                const int column = tile % ACROSS * COLUMNS + m % (COLUMNS / 8) * 8 + lane / 4;
                const size_t pixel = (size_t)(tile / (DOWN * ACROSS) * HEIGHT + row) * WIDTH + column;
                u16* to = y + pixel * OUT + blockIdx.y * N;
#pragma unroll
                for (int j = 0; j < N / 8; j += 4) {
                    u32 v[4];
#pragma unroll
                    for (int i = 0; i < 4 && j + i < N / 8; i++) {
                        const int at = 4 * (j + i) + 2 * half;
                        v[i] = two(sums[m][at], sums[m][at + 1]);
                        if (TOTALS) {
                            const float low = __uint_as_float(v[i] << 16), high = __uint_as_float(v[i] & 0xFFFF0000u);
                            total[2 * (j + i)] += low, total[N / 4 + 2 * (j + i)] += low * low;
                            total[2 * (j + i) + 1] += high, total[N / 4 + 2 * (j + i) + 1] += high * high;
                        }
                    }
                    if (j + 4 <= N / 8) {
                        // Four lanes hold two outputs each of four eights. Turned, each holds one eight.
                        u32 t;
                        t = __shfl_xor_sync(~0u, quarter & 1 ? v[0] : v[1], 1), (quarter & 1 ? v[0] : v[1]) = t;
                        t = __shfl_xor_sync(~0u, quarter & 1 ? v[2] : v[3], 1), (quarter & 1 ? v[2] : v[3]) = t;
                        t = __shfl_xor_sync(~0u, quarter & 2 ? v[0] : v[2], 2), (quarter & 2 ? v[0] : v[2]) = t;
                        t = __shfl_xor_sync(~0u, quarter & 2 ? v[1] : v[3], 2), (quarter & 2 ? v[1] : v[3]) = t;
                        const int output = (j + quarter) * 8;
                        if (OUT % N == 0 || (int)blockIdx.y * N + output < OUT) store16(to + output, v);
                    } else {
#pragma unroll
                        for (int i = 0; j + i < N / 8; i++) {
                            const int output = (j + i) * 8 + quarter * 2;
                            if (OUT % N == 0 || (int)blockIdx.y * N + output < OUT) *(u32*)(to + output) = v[i];
                        }
                    }
                }
            }
    }
    if constexpr (TOTALS) {  // over the lanes of a warp, then over the warps, always in the same order
        float* by_warp = (float*)(shared + (barriers + 16 * STAGES + 8 * GROUPS * BUFFERS + 15) / 16 * 16 -
                                  (u32)__cvta_generic_to_shared(shared));
        int first = fold<SUMS / 2>(total, lane, 4);
        first += fold<SUMS / 4>(total, lane, 8);
        first += fold<SUMS / 8>(total, lane, 16);
#pragma unroll
        for (int i = 0; i < SUMS / 8; i++) {
            const int k = first + i, output = k % (N / 4) / 2 * 8 + lane % 4 * 2 + k % (N / 4) % 2;
            if (k < N / 2) by_warp[thread / 32 * 2 * N + k / (N / 4) * N + output] = total[i];
        }
        __syncthreads();
        for (int i = thread; i < 2 * N; i += GROUPS * 128) {
            float sum = 0;
            for (int warp = 0; warp < GROUPS * 4; warp++) sum += by_warp[warp * 2 * N + i];
            const int output = blockIdx.y * N + i % N;
            if (output < OUT) totals[(size_t)(blockIdx.x * 2 + i / N) * OUT + output] = sum;
        }
    }
}
