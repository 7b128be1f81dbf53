// wgrad of a 3x3 convolution: for each tap, [output channels, pixels] times [pixels, input channels].
//
// Both operands lie in shared memory with a row of channels per pixel. A wgmma over 16 pixels reads two rows of eight
// pixels of a tile; another tap reads the same memory from another pixel on. Every CTA accumulates over its part of the
// pixels, and `sum_partials` adds the parts.

// HEIGHT, WIDTH, IN, OUT   size and channels of the layer
// BLOCK_IN                 input channels of a CTA; it has 64 output channels and all taps, one row of taps for each of
//                          three warpgroups
// ROWS, COLUMNS            size of a tile, multiples of eight
// STAGES                   pipeline stages: tiles in shared memory at a time
// AFFINE_GRAD              the gradient is a * grad + b * other + c; `coefficients` has a, b, c of each output channel
template <int HEIGHT, int WIDTH, int IN, int OUT, int BLOCK_IN, int ROWS, int COLUMNS, int STAGES, bool AFFINE_GRAD>
__global__ void __launch_bounds__(384)
    wgrad3x3(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap grad,
             const __grid_constant__ TensorMap other, const float* __restrict__ coefficients,
             float* __restrict__ partials, int images) {
    constexpr int TILES_X = WIDTH / COLUMNS, TILES_Y = HEIGHT / ROWS, WARPGROUPS = 3, PITCH = COLUMNS + 2;
    constexpr int IN_BLOCKS = (IN + BLOCK_IN - 1) / BLOCK_IN, PANELS = (BLOCK_IN + 63) / 64;  // a panel: 64 channels
    constexpr u32 X_BYTES = (ROWS + 2) * PITCH * 128, GRAD_BYTES = ROWS * COLUMNS * 128;
    constexpr u32 PANEL_BYTES = (X_BYTES + 1023) / 1024 * 1024, GRAD_OFFSET = PANELS * PANEL_BYTES;
    constexpr u32 STAGE_BYTES = GRAD_OFFSET + (1 + AFFINE_GRAD) * GRAD_BYTES;
    extern __shared__ u8 shared[];
    const u32 tiles_smem = ((u32)__cvta_generic_to_shared(shared) + 1023) / 1024 * 1024;
    const u32 full = tiles_smem + STAGES * STAGE_BYTES, empty = full + 8 * STAGES;  // mbarriers of the stages
    const int thread = threadIdx.x, warpgroup = __shfl_sync(~0u, thread / 128, 0), lane = thread % 32;
    const int tiles = images * TILES_Y * TILES_X;
    const int rounds = (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    const int output = blockIdx.y / IN_BLOCKS * 64, input = blockIdx.y % IN_BLOCKS * BLOCK_IN;  // first channels
    const bool is_leader = thread % 128 == 0;

    if (thread == 0) prefetch_tensor_map(&x), prefetch_tensor_map(&grad);
    if (thread < STAGES) {
        mbarrier_init(full + 8 * thread, 1);
        mbarrier_init(empty + 8 * thread, WARPGROUPS - 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();

    auto load_tile = [&](int round) {
        const int tile = round * gridDim.x + blockIdx.x, stage = round % STAGES;
        const int row = tile / TILES_X % TILES_Y * ROWS, column = tile % TILES_X * COLUMNS;
        const int image = tile / (TILES_Y * TILES_X);
        const u32 to = tiles_smem + stage * STAGE_BYTES, mbarrier = full + 8 * stage;
        mbarrier_expect_tx(mbarrier, PANELS * X_BYTES + (1 + AFFINE_GRAD) * GRAD_BYTES);
        for (int panel = 0; panel < PANELS; panel++)
            tma_load_4d(to + panel * PANEL_BYTES, &x, input + panel * 64, column - 1, row - 1, image, mbarrier);
        tma_load_4d(to + GRAD_OFFSET, &grad, output, column, row, image, mbarrier);
        if (AFFINE_GRAD) tma_load_4d(to + GRAD_OFFSET + GRAD_BYTES, &other, output, column, row, image, mbarrier);
    };
    if (thread == 0)
        for (int round = 0; round < STAGES && round < rounds; round++) load_tile(round);

    // A thread computes the gradient of the same eight output channels of all its pixels: 16 bytes of a row, at their
    // swizzled position.
    const int channel = output + (thread % 8 ^ thread / 8 % 8) * 8;
    float a[8], b[8], c[8];
#pragma unroll
    for (int i = 0; i < 8 && AFFINE_GRAD; i++) {
        const bool inside = OUT % 64 == 0 || channel < OUT;
        a[i] = inside ? coefficients[channel + i] : 0.f;
        b[i] = inside ? coefficients[OUT + channel + i] : 0.f;
        c[i] = inside ? coefficients[2 * OUT + channel + i] : 0.f;
    }
    auto compute_grad = [&](u32 tile) {
        for (int piece = thread; piece < ROWS * COLUMNS * 8; piece += 384) {
            u32 g[4], o[4];
            load_shared(tile + piece * 16, g), load_shared(tile + GRAD_BYTES + piece * 16, o);
#pragma unroll
            for (int i = 0; i < 4; i++)
                g[i] = pack_bf16x2(a[2 * i] * low_bf16(g[i]) + b[2 * i] * low_bf16(o[i]) + c[2 * i],
                                   a[2 * i + 1] * high_bf16(g[i]) + b[2 * i + 1] * high_bf16(o[i]) + c[2 * i + 1]);
            store_shared(tile + piece * 16, g);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // wgmma reads through the async proxy
        __syncthreads();
    };

    float acc[3][BLOCK_IN / 2];
#pragma unroll
    for (int tap = 0; tap < 3; tap++)
#pragma unroll
        for (int i = 0; i < BLOCK_IN / 2; i++) acc[tap][i] = 0.f;
    // Once all warpgroups have released the tile of a round, load a later tile into its stage.
    auto refill_stage = [&](int round) {
        if (!is_leader) return;
        const int stage = round % STAGES;
        if (thread) mbarrier_arrive(empty + 8 * stage);
        if (thread || round + STAGES >= rounds) return;
        mbarrier_wait(empty + 8 * stage, round / STAGES & 1);
        load_tile(round + STAGES);
    };
    for (int round = 0; round < rounds; round++) {
        const int stage = round % STAGES;
        mbarrier_wait(full + 8 * stage, round / STAGES & 1);
        const u32 tile = tiles_smem + stage * STAGE_BYTES;
        if (AFFINE_GRAD) compute_grad(tile + GRAD_OFFSET);
        const u64 grad_descriptor = wgmma_descriptor(tile + GRAD_OFFSET, COLUMNS * 128);
        const u64 x_descriptor = wgmma_descriptor(tile, PITCH * 128, PANEL_BYTES);
        wgmma_fence();
#pragma unroll
        for (int pixels = 0; pixels < ROWS * COLUMNS / 16; pixels++) {
            const int row = pixels / (COLUMNS / 8) * 2, column = pixels % (COLUMNS / 8) * 8;
#pragma unroll
            for (int tap = 0; tap < 3; tap++)
                wgmma(1, acc[tap], grad_descriptor + (row * COLUMNS + column) * 8,
                      x_descriptor + ((row + warpgroup) * PITCH + column + tap) * 8);
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (round > 0) refill_stage(round - 1);
    }
    wgmma_wait<0>();

#pragma unroll
    for (int tap = 0; tap < 3; tap++) {
#pragma unroll
        for (int i = 0; i < BLOCK_IN / 2; i++)
            asm volatile("" : "+f"(acc[tap][i])::"memory");  // keeps the compiler from reading acc before the wait
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = output + thread % 128 / 32 * 16 + half * 8 + lane / 4;
            float* to = partials + ((size_t)(blockIdx.x * 9 + warpgroup * 3 + tap) * OUT + row) * IN + input +
                        lane % 4 * 2;
            const bool inside = OUT % 64 == 0 || row < OUT;
#pragma unroll
            for (int i = 0; i < BLOCK_IN / 8; i += 2) {
                // Two lanes hold two channels each of two groups of eight. They exchange values, so that each holds
                // four channels of one group and stores 16 bytes.
                const float* mine = acc[tap] + 4 * i + 2 * half;
                if (i + 1 < BLOCK_IN / 8) {
                    const bool odd = lane & 1;
                    const float one = __shfl_xor_sync(~0u, odd ? mine[0] : mine[4], 1);
                    const float two = __shfl_xor_sync(~0u, odd ? mine[1] : mine[5], 1);
                    float* address = to + (i + odd) * 8 - (odd ? 2 : 0);
                    if (inside && (IN % BLOCK_IN == 0 || input + (i + odd) * 8 < IN))
                        asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address),
                                     "f"(odd ? one : mine[0]), "f"(odd ? two : mine[1]), "f"(odd ? mine[4] : one),
                                     "f"(odd ? mine[5] : two) : "memory");
                } else if (inside && (IN % BLOCK_IN == 0 || input + i * 8 < IN)) {
                    asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to + i * 8), "f"(mine[0]), "f"(mine[1])
                                 : "memory");
                }
            }
        }
    }
}

// sum[i] = partials[0][i] + partials[1][i] + ..., always in the same order; `size` is a multiple of four.
__global__ void __launch_bounds__(256)
    sum_partials(const float* __restrict__ partials, float* __restrict__ sum, int count, int size) {
    __shared__ float4 warp_sums[8][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, i = (blockIdx.x * 32 + lane) * 4;
    float4 total = make_float4(0, 0, 0, 0);
    if (i < size)
#pragma unroll 4
        for (int part = warp; part < count; part += 8) {
            const float4 value = *(const float4*)(partials + (size_t)part * size + i);
            total.x += value.x, total.y += value.y, total.z += value.z, total.w += value.w;
        }
    warp_sums[warp][lane] = total;
    __syncthreads();
    if (warp || i >= size) return;
    for (int other = 1; other < 8; other++) {
        const float4 value = warp_sums[other][lane];
        total.x += value.x, total.y += value.y, total.z += value.z, total.w += value.w;
    }
    *(float4*)(sum + i) = total;
}
