// The gradient of a 3x3 convolution by its weights: for each tap, outputs x pixels times pixels x inputs.
//
// Both lie in shared memory as rows of pixels. A product over 16 pixels takes two rows of eight of a patch, the other
// taps the same memory from another pixel on. Every block adds up its part of the pixels, `add_up` the parts.

// HEIGHT, WIDTH, IN, OUT   of the images
// N                        inputs of a block; it has 64 outputs and all taps, a row of them for each of three groups
// ROWS, COLUMNS            of a tile, multiples of eight
// STAGES                   tiles that are there at a time
// JOINED                   whether the gradient is yet to be made of two: for every output three numbers say how, so
//                          much of `grad`, so much of `other`, and so much more
template <int HEIGHT, int WIDTH, int IN, int OUT, int N, int ROWS, int COLUMNS, int STAGES, bool JOINED>
__global__ void __launch_bounds__(384)
    grad3x3(const __grid_constant__ Map x, const __grid_constant__ Map grad, const __grid_constant__ Map other,
            const float* __restrict__ numbers, float* __restrict__ parts, int images) {
    constexpr int ACROSS = WIDTH / COLUMNS, DOWN = HEIGHT / ROWS, GROUPS = 3, PITCH = COLUMNS + 2;
    constexpr int BLOCKS = (IN + N - 1) / N, PANELS = (N + 63) / 64;  // of inputs
    constexpr u32 THEIRS = (ROWS + 2) * PITCH * 128, OURS = ROWS * COLUMNS * 128;
    constexpr u32 PANEL = (THEIRS + 1023) / 1024 * 1024, GRAD = PANELS * PANEL, TILE = GRAD + (1 + JOINED) * OURS;
    extern __shared__ u8 shared[];
    const u32 tiles_at = ((u32)__cvta_generic_to_shared(shared) + 1023) / 1024 * 1024;
    const u32 here = tiles_at + STAGES * TILE, done = here + 8 * STAGES;
    const int thread = threadIdx.x, group = __shfl_sync(~0u, thread / 128, 0), lane = thread % 32;
    const int tiles = images * DOWN * ACROSS, turns = (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    const int output = blockIdx.y / BLOCKS * 64, input = blockIdx.y % BLOCKS * N;
    const bool leads = thread % 128 == 0;

    if (thread == 0) expect_map(&x), expect_map(&grad);
    if (thread < STAGES) {
        barrier_init(here + 8 * thread, 1);
        barrier_init(done + 8 * thread, GROUPS - 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();

    auto bring_tile = [&](int turn) {
        const int tile = turn * gridDim.x + blockIdx.x, slot = turn % STAGES;
        const int row = tile / ACROSS % DOWN * ROWS, column = tile % ACROSS * COLUMNS, image = tile / (DOWN * ACROSS);
        const u32 to = tiles_at + slot * TILE, barrier = here + 8 * slot;
        expect(barrier, PANELS * THEIRS + (1 + JOINED) * OURS);
        for (int panel = 0; panel < PANELS; panel++)
            bring_box(to + panel * PANEL, &x, input + panel * 64, column - 1, row - 1, image, barrier);
        bring_box(to + GRAD, &grad, output, column, row, image, barrier);
        if (JOINED) bring_box(to + GRAD + OURS, &other, output, column, row, image, barrier);
    };
    if (thread == 0)
        for (int turn = 0; turn < STAGES && turn < turns; turn++) bring_tile(turn);

    // A thread joins the same eight outputs of all its pixels: 16 bytes of a row, where the swizzle has put them.
    const int eight = output + (thread % 8 ^ thread / 8 % 8) * 8;
    float of_grad[8], of_other[8], more[8];
#pragma unroll
    for (int i = 0; i < 8 && JOINED; i++) {
        const bool inside = OUT % 64 == 0 || eight < OUT;
        of_grad[i] = inside ? numbers[eight + i] : 0.f;
        of_other[i] = inside ? numbers[OUT + eight + i] : 0.f;
        more[i] = inside ? numbers[2 * OUT + eight + i] : 0.f;
    }
    auto join = [&](u32 at) {
        for (int piece = thread; piece < ROWS * COLUMNS * 8; piece += 384) {
            u32 g[4], o[4];
            load_shared(at + piece * 16, g), load_shared(at + OURS + piece * 16, o);
#pragma unroll
            for (int i = 0; i < 4; i++)
                g[i] = two(of_grad[2 * i] * low(g[i]) + of_other[2 * i] * low(o[i]) + more[2 * i],
                           of_grad[2 * i + 1] * high(g[i]) + of_other[2 * i + 1] * high(o[i]) + more[2 * i + 1]);
            store_shared(at + piece * 16, g);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the products read past the threads' own view
        __syncthreads();
    };

    float sums[3][N / 2];
#pragma unroll
    for (int tap = 0; tap < 3; tap++)
#pragma unroll
        for (int i = 0; i < N / 2; i++) sums[tap][i] = 0.f;
    // All groups are done with the tile of a turn: another takes its place.
    auto next_tile = [&](int turn) {
        if (!leads) return;
        const int slot = turn % STAGES;
        if (thread) arrive(done + 8 * slot);
        if (thread || turn + STAGES >= turns) return;
        wait(done + 8 * slot, turn / STAGES & 1);
        bring_tile(turn + STAGES);
    };
    for (int turn = 0; turn < turns; turn++) {
        const int slot = turn % STAGES;
        wait(here + 8 * slot, turn / STAGES & 1);
        const u32 at = tiles_at + slot * TILE;
        if (JOINED) join(at + GRAD);
        const u64 a = matrix(at + GRAD, COLUMNS * 128), b = matrix(at, PITCH * 128, PANEL);
        mma_begin();
#pragma unroll
        for (int pixels = 0; pixels < ROWS * COLUMNS / 16; pixels++) {
            const int row = pixels / (COLUMNS / 8) * 2, column = pixels % (COLUMNS / 8) * 8;
#pragma unroll
            for (int tap = 0; tap < 3; tap++)
                mma(1, sums[tap], a + (row * COLUMNS + column) * 8, b + ((row + group) * PITCH + column + tap) * 8);
        }
        mma_end();
        mma_wait<1>();
        if (turn > 0) next_tile(turn - 1);
    }
    mma_wait<0>();

#pragma unroll
    for (int tap = 0; tap < 3; tap++) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) asm volatile("" : "+f"(sums[tap][i])::"memory");  // not read before
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = output + thread % 128 / 32 * 16 + half * 8 + lane / 4;
            float* to = parts + ((size_t)(blockIdx.x * 9 + group * 3 + tap) * OUT + row) * IN + input + lane % 4 * 2;
            const bool inside = OUT % 64 == 0 || row < OUT;
#pragma unroll
            for (int i = 0; i < N / 8; i += 2) {
                // Two lanes hold two inputs each of two eights. Turned, each holds four of one.
                const float* mine = sums[tap] + 4 * i + 2 * half;
                if (i + 1 < N / 8) {
                    const bool odd = lane & 1;
                    const float one = __shfl_xor_sync(~0u, odd ? mine[0] : mine[4], 1);
                    const float two = __shfl_xor_sync(~0u, odd ? mine[1] : mine[5], 1);
                    float* place = to + (i + odd) * 8 - (odd ? 2 : 0);
                    if (inside && (IN % N == 0 || input + (i + odd) * 8 < IN))
                        asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(place),
                                     "f"(odd ? one : mine[0]), "f"(odd ? two : mine[1]), "f"(odd ? mine[4] : one),
                                     "f"(odd ? mine[5] : two) : "memory");
                } else if (inside && (IN % N == 0 || input + i * 8 < IN)) {
                    asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to + i * 8), "f"(mine[0]), "f"(mine[1])
                                 : "memory");
                }
            }
        }
    }
}

// sum[i] = parts[0][i] + parts[1][i] + ..., always in the same order; `size` a multiple of four.
__global__ void __launch_bounds__(256)
    add_up(const float* __restrict__ parts, float* __restrict__ sum, int count, int size) {
    __shared__ float4 by_warp[8][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, i = (blockIdx.x * 32 + lane) * 4;
    float4 total = make_float4(0, 0, 0, 0);
    if (i < size)
#pragma unroll 4
        for (int part = warp; part < count; part += 8) {
            const float4 more = *(const float4*)(parts + (size_t)part * size + i);
            total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
        }
    by_warp[warp][lane] = total;
    __syncthreads();
    if (warp || i >= size) return;
    for (int other = 1; other < 8; other++) {
        const float4 more = by_warp[other][lane];
        total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
    }
    *(float4*)(sum + i) = total;
}
