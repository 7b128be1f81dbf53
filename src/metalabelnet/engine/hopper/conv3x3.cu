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
// Four bytes, or as many times four as there are: the compiler knows which.
__device__ __forceinline__ void load(const void* from, void* to, int count) {
    u32* v = (u32*)to;
#pragma unroll
    for (int i = 0; i < count; i += 4)
        if (count > 2)
            asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v[i]), "=r"(v[i + 1]), "=r"(v[i + 2]), "=r"(v[i + 3]) : "l"((const u32*)from + i));
        else
            for (int k = 0; k < count; k++)
                asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(v[k]) : "l"((const u32*)from + k));
}
__device__ __forceinline__ void store16(void* to, const u32* v) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}
// Two lanes add up twice `left` numbers each, and each goes on with half of them: the upper lane with the upper half.
template <int left> __device__ __forceinline__ void halve(float* numbers, int lane, int apart) {
    const bool upper = lane & apart;
#pragma unroll
    for (int i = 0; i < left; i++) {
        const float low = numbers[i], high = numbers[i + left];
        numbers[i] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, apart);
    }
}
// The lanes that have the same sixteen numbers of other pixels: each goes on with two of them.
__device__ __forceinline__ void fold(float* numbers, int lane) {
    halve<8>(numbers, lane, 4), halve<4>(numbers, lane, 8), halve<2>(numbers, lane, 16);
}

// HEIGHT, WIDTH, IN, OUT   of the images
// N                        outputs of a block
// GROUPS                   warpgroups, each with tiles of its own
// ROWS, COLUMNS            of a tile, multiples of eight
// STAGES                   parts of the weights (a tap, 64 channels) that are there at a time; all of them: they stay
// BUFFERS                  tiles of a warpgroup that are there at a time
// BESIDE                   blocks that a processor has room for at a time; of one the compiler is not told: it would
//                          take more registers, and spill
// PLUS                     whether to add `plus` to what comes out
// THEN                     what to do with each output: nothing more; or to add up over the pixels of a block the
//                          output itself and
//                          SQUARES    its square
//                          PRODUCTS   its product with `other`
//                          POSITIVE   likewise, where the line slope * other + at_zero is above zero; elsewhere zeros
//                                     are given, and add nothing
//                          or to give instead of it
//                          RECTIFIED  slope * output + at_zero, or zero if that is below
enum { NOTHING, SQUARES, PRODUCTS, POSITIVE, RECTIFIED };
template <int HEIGHT, int WIDTH, int IN, int OUT, int N, int GROUPS, int ROWS, int COLUMNS, int STAGES, int BUFFERS,
          int BESIDE, bool PLUS, int THEN>
__global__ void __launch_bounds__(GROUPS * 128, BESIDE > 1 ? BESIDE : 0)
    conv3x3(const __grid_constant__ Map x, const __grid_constant__ Map weights, u16* __restrict__ y,
            float* __restrict__ totals, const u16* __restrict__ plus, const u16* __restrict__ other,
            const float* __restrict__ slope, const float* __restrict__ at_zero, int images) {
    constexpr int PANELS = (IN + 63) / 64, LAST = (IN - (PANELS - 1) * 64 + 15) / 16, PARTS = 9 * PANELS;
    constexpr int PITCH = COLUMNS + 2, PIXELS = (ROWS + 2) * PITCH, ACROSS = WIDTH / COLUMNS, DOWN = HEIGHT / ROWS;
    constexpr int PATCHES = ROWS * COLUMNS / 64;
    constexpr u32 PANEL = (PIXELS * 128 + 1023) / 1024 * 1024, TILE = PANELS * PANEL;
    constexpr u32 PART = N * 128;
    constexpr bool STAY = STAGES == PARTS, IN_TURNS = STAY && IN > 16;
    constexpr int HALF = GROUPS / 2;
    constexpr bool WITH_OTHER = THEN == PRODUCTS || THEN == POSITIVE, SUMMED = THEN == SQUARES || WITH_OTHER;
    // Registers: what there are, what a patch takes, what is fetched for one. Some patches are fetched for before the
    // products, not after them, and totals are kept apart for each lane to the end, where there is room.
    constexpr int MOST = GROUPS * BESIDE > 2 ? 512 / (GROUPS * BESIDE) : 255, TAKEN = 45 + PATCHES * (N / 2 + 10);
    constexpr int FETCHED = N / 4 * (PLUS + WITH_OTHER), ROOM = FETCHED ? (MOST - TAKEN) / FETCHED : 0;
    constexpr int EARLY = ROOM < PATCHES ? ROOM : PATCHES;
    constexpr bool APART = SUMMED && TAKEN + EARLY * FETCHED + N / 2 <= MOST - 5;
    constexpr int TOTALS = SUMMED ? (N + 31) / 32 * (APART ? 16 : 2) : 1;
    extern __shared__ u8 shared[];
    const u32 tiles_at = ((u32)__cvta_generic_to_shared(shared) + 1023) / 1024 * 1024;
    const u32 weights_at = tiles_at + GROUPS * BUFFERS * TILE, barriers = weights_at + STAGES * PART;
    const u32 weights_here = barriers, weights_done = barriers + 8 * STAGES, my_turn = barriers + 16 * STAGES;
    const u32 tile_here = my_turn + 8 * GROUPS;
    const int thread = threadIdx.x, group = __shfl_sync(~0u, thread / 128, 0), lane = thread % 32;
    const int tiles = images * DOWN * ACROSS, step = gridDim.x * GROUPS, turns = (tiles + step - 1) / step;
    const bool leads = thread % 128 == 0;

    if (thread == 0) expect_map(&x), expect_map(&weights);
    if (thread < STAGES) {
        barrier_init(weights_here + 8 * thread, 1);
        barrier_init(weights_done + 8 * thread, GROUPS > 1 ? GROUPS - 1 : 1);
    }
    if (thread < GROUPS) barrier_init(my_turn + 8 * thread, 1);
    if (thread < GROUPS * BUFFERS) barrier_init(tile_here + 8 * thread, 1);
    const u32 after = (tile_here + 8 * GROUPS * BUFFERS + 15) / 16 * 16 - (u32)__cvta_generic_to_shared(shared);
    float *lines = (float*)(shared + after), *by_warp = lines + 2 * N;  // slopes and heights, and totals
    for (int i = thread; i < N && THEN >= POSITIVE; i += GROUPS * 128)
        if (OUT % N == 0 || (int)blockIdx.y * N + i < OUT)
            lines[i] = slope[blockIdx.y * N + i], lines[N + i] = at_zero[blockIdx.y * N + i];
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
        const u32 barrier = weights_here + 8 * slot;
        expect(barrier, PART);
        bring_box(weights_at + slot * PART, &weights, part % PANELS * 64, part / PANELS, blockIdx.y * N, barrier);
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

    const int quarter = lane % 4;
    float total[TOTALS] = {};  // of four eights all sixteen, or two: lanes can share them
    for (int turn = 0; turn < turns; turn++) {
        const int tile = turn * step + blockIdx.x * GROUPS + group, buffer = turn % BUFFERS;
        if (STAY && tile >= tiles) break;
        float sums[PATCHES][N / 2];
        size_t pixels[PATCHES][2];  // those of this lane
#pragma unroll
        for (int m = 0; m < PATCHES; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = tile / ACROSS % DOWN * ROWS + m / (COLUMNS / 8) * 8 + thread % 128 / 32 * 2 + half;
                const int column = tile % ACROSS * COLUMNS + m % (COLUMNS / 8) * 8 + lane / 4;
                pixels[m][half] = (size_t)(tile / (DOWN * ACROSS) * HEIGHT + row) * WIDTH + column;
            }
        u32 p[PATCHES][2][N / 8], o[PATCHES][2][N / 8];
        auto fetch = [&](int first, int end) {  // what is added and multiplied with, in the order of what is stored
#pragma unroll
            for (int j = 0; j < N / 8; j += j + 4 <= N / 8 ? 4 : 1) {
                const int words = j + 4 <= N / 8 ? 4 : 1, output = blockIdx.y * N + j * 8 + quarter * words * 2;
                if (OUT % N && output >= OUT) continue;
#pragma unroll
                for (int m = first; m < end; m++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const size_t at = pixels[m][half] * OUT + output;
                        if (PLUS) load(plus + at, p[m][half] + j, words);
                        if (WITH_OTHER) load(other + at, o[m][half] + j, words);
                    }
            }
        };
        if (tile < tiles) fetch(0, EARLY);
#pragma unroll
        for (int i = EARLY * 2; i < PATCHES * 2 && FETCHED && tile < tiles; i++)
#pragma unroll
            for (int j = 0; j < N; j += 32) {  // at least nearer
                const int of_block = j + quarter * 8, output = blockIdx.y * N + of_block;
                if ((N % 32 && of_block >= N) || (OUT % N && output >= OUT)) continue;
                const size_t at = pixels[i / 2][i % 2] * OUT + output;
                if (PLUS) asm volatile("prefetch.global.L2 [%0];" ::"l"(plus + at));
                if (WITH_OTHER) asm volatile("prefetch.global.L2 [%0];" ::"l"(other + at));
            }
        const u64 a = matrix(mine + buffer * TILE, PITCH * 128);
        if (tile < tiles) wait(here + 8 * buffer, turn / BUFFERS & 1);
        // Half of the groups multiply at a time, as fast as all would: the others store meanwhile.
        if (IN_TURNS && (turn > 0 || group >= HALF)) wait(my_turn + 8 * group, turn - (group < HALF) & 1);
#pragma unroll 1
        for (int tap = 0; tap < 9; tap++)
#pragma unroll
            for (int panel = 0; panel < PANELS; panel++) {
                if (STAY) slot = tap * PANELS + panel;
                if (!STAY || turn == 0) wait(weights_here + 8 * slot, STAY ? 0 : round & 1);
                const u64 from = a + (tap / 3 * PITCH + tap % 3) * 8 + panel * (PANEL / 16);
                const u64 b = matrix(weights_at + slot * PART, 1024);
                mma_begin();
#pragma unroll
                for (int k = 0; k < (panel == PANELS - 1 ? LAST : 4); k++)
#pragma unroll
                    for (int m = 0; m < PATCHES; m++)
                        mma(tap + panel + k > 0, sums[m],
                            from + (m / (COLUMNS / 8) * PITCH + m % (COLUMNS / 8)) * 64 + 2 * k, b + 2 * k);
                mma_end();
                if (!STAY) {
                    mma_wait<1>();
                    if (tap + panel > 0) next_weights(turn * PARTS + tap * PANELS + panel - 1);
                    if (++slot == STAGES) slot = 0, round++;
                }
            }
        if (IN_TURNS && leads) arrive(my_turn + 8 * ((group + HALF) % GROUPS));
        mma_wait<0>();
        if (!STAY) next_weights(turn * PARTS + PARTS - 1);
        if (turn + BUFFERS < turns) {
            sync_group(group);
            bring_tile(turn + BUFFERS);
        }
        if (tile >= tiles) break;

        u32 v[PATCHES][2][N / 8];
#pragma unroll
        for (int m = 0; m < PATCHES; m++)
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int j = 0; j < N / 8; j++) {
                    u32* w = v[m][half] + j / 4 * 4;
                    float out[2] = {sums[m][4 * j + 2 * half], sums[m][4 * j + 2 * half + 1]};
#pragma unroll
                    for (int k = 0; k < 2 && THEN == RECTIFIED; k++) {
                        const float *line = lines + j * 8 + quarter * 2 + k, value = line[0] * out[k] + line[N];
                        out[k] = value < 0.f ? 0.f : value;
                    }
                    w[j % 4] = two(out[0], out[1]);
                    if (j % 4 < 3) continue;
                    // Four lanes hold two outputs each of four eights. Turned, each holds one eight.
                    u32 t;
                    t = __shfl_xor_sync(~0u, quarter & 1 ? w[0] : w[1], 1), (quarter & 1 ? w[0] : w[1]) = t;
                    t = __shfl_xor_sync(~0u, quarter & 1 ? w[2] : w[3], 1), (quarter & 1 ? w[2] : w[3]) = t;
                    t = __shfl_xor_sync(~0u, quarter & 2 ? w[0] : w[2], 2), (quarter & 2 ? w[0] : w[2]) = t;
                    t = __shfl_xor_sync(~0u, quarter & 2 ? w[1] : w[3], 2), (quarter & 2 ? w[1] : w[3]) = t;
                }
        fetch(EARLY, PATCHES);
#pragma unroll
        for (int j = 0; j < N / 8; j += 4) {
            const bool whole = j + 4 <= N / 8;
            const int output = j * 8 + quarter * (whole ? 8 : 2);
            float slopes[8], heights[8], fresh[16] = {};
            float* here = APART ? total + j * 4 : fresh;  // of eight outputs the totals, then the others
#pragma unroll
            for (int k = 0; k < 8 && j + (whole ? 0 : k / 2) < N / 8 && THEN == POSITIVE; k++) {
                const int of = output + (whole ? k : k / 2 * 8 + k % 2);
                slopes[k] = lines[of], heights[k] = lines[N + of];
            }
#pragma unroll
            for (int m = 0; m < PATCHES; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    u32* w = v[m][half] + j;
                    u16* to = y + pixels[m][half] * OUT + blockIdx.y * N + output;
#pragma unroll
                    for (int i = 0; i < 4 && j + i < N / 8; i++) {
                        if (OUT % N && (int)blockIdx.y * N + output + (whole ? 0 : i * 8) >= OUT) continue;
                        const u32 plus = p[m][half][j + i];
                        if (PLUS) w[i] = two(low(w[i]) + low(plus), high(w[i]) + high(plus));
                        const u32 with = WITH_OTHER ? o[m][half][j + i] : w[i];
                        if (SUMMED) {
                            const float its[2] = {low(with), high(with)};
                            if (THEN == POSITIVE)
                                w[i] &= (slopes[2 * i] * its[0] + heights[2 * i] > 0.f ? 0xFFFFu : 0u) |
                                        (slopes[2 * i + 1] * its[1] + heights[2 * i + 1] > 0.f ? 0xFFFF0000u : 0u);
                            here[2 * i] += low(w[i]), here[8 + 2 * i] += low(w[i]) * its[0];
                            here[2 * i + 1] += high(w[i]), here[9 + 2 * i] += high(w[i]) * its[1];
                        }
                        if (!whole) *(u32*)(to + i * 8) = w[i];
                    }
                    if (whole && (OUT % N == 0 || (int)blockIdx.y * N + output < OUT)) store16(to, w);
                }
            if (SUMMED && !APART) {
                fold(here, lane);
                total[j / 2] += here[0], total[j / 2 + 1] += here[1];
            }
        }
    }
    if constexpr (SUMMED) {  // over the lanes of a warp, then over the warps, always in the same order
        const int first = (lane & 4 ? 8 : 0) + (lane & 8 ? 4 : 0) + (lane & 16 ? 2 : 0);
#pragma unroll
        for (int i = 0; i < (N + 31) / 32 * 2; i++) {
            if (APART && i % 2 == 0) fold(total + i * 8, lane);
            const int j = i / 2 * 4, k = (first + i % 2) % 8;
            const int output = j + 4 <= N / 8 ? (j + quarter) * 8 + k : (j + k / 2) * 8 + quarter * 2 + k % 2;
            const float found = total[APART ? i / 2 * 16 + i % 2 : i];
            if (output < N) by_warp[thread / 32 * 2 * N + (first >= 8 ? N : 0) + output] = found;
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
