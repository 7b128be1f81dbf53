// 3x3 convolution with zero padding: bfloat16, channels last, accumulation in float32, for tensor cores of compute
// capability 9.0. dgrad is the same convolution with flipped taps.
//
// A tile of pixels lies in shared memory with a border of one pixel and a row of 128 bytes per pixel (64 channels), and
// is loaded once. A subtile of 8x8 pixels is a wgmma operand of 64 rows. Another tap reads the same memory from another
// row on, so that no pixel is read nine times from global memory. The hardware applies the 128-byte swizzle to
// addresses, which makes it independent of the row at which an operand begins.

// TMA load of a box of a 3D tensor (output channel, tap, input channel) to shared memory.
__device__ __forceinline__ void tma_load_3d(u32 to, const TensorMap* from, int channel, int tap, int output,
                                            u32 mbarrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
        "[%5];" ::"r"(to), "l"(from), "r"(channel), "r"(tap), "r"(output), "r"(mbarrier) : "memory");
}
// Load `words` 32-bit words: one, or a multiple of four, known at compile time.
__device__ __forceinline__ void load_words(const void* from, void* to, int words) {
    u32* v = (u32*)to;
#pragma unroll
    for (int i = 0; i < words; i += 4)
        if (words > 2)
            asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v[i]), "=r"(v[i + 1]), "=r"(v[i + 2]), "=r"(v[i + 3]) : "l"((const u32*)from + i));
        else
            for (int k = 0; k < words; k++)
                asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(v[k]) : "l"((const u32*)from + k));
}
__device__ __forceinline__ void store_16_bytes(void* to, const u32* v) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}
// Two lanes add 2 * `left` values pairwise; each keeps half of the sums, the upper lane the upper half.
template <int left> __device__ __forceinline__ void reduce_and_split(float* values, int lane, int lane_mask) {
    const bool upper = lane & lane_mask;
#pragma unroll
    for (int i = 0; i < left; i++) {
        const float low = values[i], high = values[i + left];
        values[i] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, lane_mask);
    }
}
// Reduce sixteen values over the eight lanes that hold the same channels of other pixels; each lane keeps two sums.
__device__ __forceinline__ void reduce_over_pixels(float* values, int lane) {
    reduce_and_split<8>(values, lane, 4), reduce_and_split<4>(values, lane, 8), reduce_and_split<2>(values, lane, 16);
}

// HEIGHT, WIDTH, IN, OUT   size and channels of the layer
// BLOCK_OUT                output channels of a CTA
// WARPGROUPS               each works on its own tiles
// ROWS, COLUMNS            size of a tile, multiples of eight
// WEIGHT_STAGES            pipeline stages for weights: parts (one tap, 64 input channels) in shared memory at a time;
//                          if all parts fit, they stay there
// TILE_STAGES              pipeline stages for tiles of a warpgroup
// CTAS_PER_SM              CTAs that run on an SM at a time; the compiler is not told of one, because it would then
//                          use more registers, and spill
// ADD                      add `addend` to the output
// EPILOGUE                 STORE                store the output
//                          SUM_SQUARES          also sum the output and its square over the pixels of a CTA
//                          SUM_PRODUCTS         also sum the output and its product with `factor`
//                          SUM_MASKED_PRODUCTS  likewise, with the output set to zero where scale * factor + shift is
//                                               not positive
//                          AFFINE_RELU          store relu(scale * output + shift)
enum { STORE, SUM_SQUARES, SUM_PRODUCTS, SUM_MASKED_PRODUCTS, AFFINE_RELU };
template <int HEIGHT, int WIDTH, int IN, int OUT, int BLOCK_OUT, int WARPGROUPS, int ROWS, int COLUMNS,
          int WEIGHT_STAGES, int TILE_STAGES, int CTAS_PER_SM, bool ADD, int EPILOGUE>
__global__ void __launch_bounds__(WARPGROUPS * 128, CTAS_PER_SM > 1 ? CTAS_PER_SM : 0)
    conv3x3(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weights, u16* __restrict__ y,
            float* __restrict__ partial_sums, const u16* __restrict__ addend, const u16* __restrict__ factor,
            const float* __restrict__ scale, const float* __restrict__ shift, int images) {
    constexpr int PANELS = (IN + 63) / 64;                            // of 64 input channels
    constexpr int LAST_K_STEPS = (IN - (PANELS - 1) * 64 + 15) / 16;  // wgmmas over the channels of the last panel
    constexpr int WEIGHT_PARTS = 9 * PANELS;
    constexpr int PITCH = COLUMNS + 2, PIXELS = (ROWS + 2) * PITCH;
    constexpr int TILES_X = WIDTH / COLUMNS, TILES_Y = HEIGHT / ROWS, SUBTILES = ROWS * COLUMNS / 64;
    constexpr u32 PANEL_BYTES = (PIXELS * 128 + 1023) / 1024 * 1024, TILE_BYTES = PANELS * PANEL_BYTES;
    constexpr u32 PART_BYTES = BLOCK_OUT * 128;
    constexpr bool RESIDENT_WEIGHTS = WEIGHT_STAGES == WEIGHT_PARTS, PING_PONG = RESIDENT_WEIGHTS && IN > 16;
    constexpr int HALF = WARPGROUPS / 2;
    constexpr bool READS_FACTOR = EPILOGUE == SUM_PRODUCTS || EPILOGUE == SUM_MASKED_PRODUCTS;
    constexpr bool SUMS = EPILOGUE == SUM_SQUARES || READS_FACTOR;
    // Register budget: the limit per thread, what a subtile needs, what prefetching a subtile's operands needs. As many
    // subtiles as fit prefetch the epilogue's operands before the wgmmas, and if registers are left, every lane keeps
    // its own sums to the end.
    constexpr int MAX_REGISTERS = WARPGROUPS * CTAS_PER_SM > 2 ? 512 / (WARPGROUPS * CTAS_PER_SM) : 255;
    constexpr int USED_REGISTERS = 45 + SUBTILES * (BLOCK_OUT / 2 + 10);
    constexpr int PREFETCH_REGISTERS = BLOCK_OUT / 4 * (ADD + READS_FACTOR);
    constexpr int PREFETCH_FITS = PREFETCH_REGISTERS ? (MAX_REGISTERS - USED_REGISTERS) / PREFETCH_REGISTERS : 0;
    constexpr int PREFETCHED = PREFETCH_FITS < SUBTILES ? PREFETCH_FITS : SUBTILES;
    constexpr bool LANE_SUMS =
        SUMS && USED_REGISTERS + PREFETCHED * PREFETCH_REGISTERS + BLOCK_OUT / 2 <= MAX_REGISTERS - 5;
    constexpr int SUM_REGISTERS = SUMS ? (BLOCK_OUT + 31) / 32 * (LANE_SUMS ? 16 : 2) : 1;
    extern __shared__ u8 shared[];
    const u32 tiles_smem = ((u32)__cvta_generic_to_shared(shared) + 1023) / 1024 * 1024;
    const u32 weights_smem = tiles_smem + WARPGROUPS * TILE_STAGES * TILE_BYTES;
    const u32 mbarriers = weights_smem + WEIGHT_STAGES * PART_BYTES;
    const u32 weights_full = mbarriers, weights_empty = mbarriers + 8 * WEIGHT_STAGES;
    const u32 turn = mbarriers + 16 * WEIGHT_STAGES, tile_full = turn + 8 * WARPGROUPS;
    const int thread = threadIdx.x, warpgroup = __shfl_sync(~0u, thread / 128, 0), lane = thread % 32;
    const int tiles = images * TILES_Y * TILES_X, tiles_per_round = gridDim.x * WARPGROUPS;
    const int rounds = (tiles + tiles_per_round - 1) / tiles_per_round;
    const bool is_leader = thread % 128 == 0;

    if (thread == 0) prefetch_tensor_map(&x), prefetch_tensor_map(&weights);
    if (thread < WEIGHT_STAGES) {
        mbarrier_init(weights_full + 8 * thread, 1);
        mbarrier_init(weights_empty + 8 * thread, WARPGROUPS > 1 ? WARPGROUPS - 1 : 1);
    }
    if (thread < WARPGROUPS) mbarrier_init(turn + 8 * thread, 1);
    if (thread < WARPGROUPS * TILE_STAGES) mbarrier_init(tile_full + 8 * thread, 1);
    const u32 epilogue_offset =
        (tile_full + 8 * WARPGROUPS * TILE_STAGES + 15) / 16 * 16 - (u32)__cvta_generic_to_shared(shared);
    float *scale_shift = (float*)(shared + epilogue_offset), *warp_sums = scale_shift + 2 * BLOCK_OUT;
    for (int i = thread; i < BLOCK_OUT && EPILOGUE >= SUM_MASKED_PRODUCTS; i += WARPGROUPS * 128)
        if (OUT % BLOCK_OUT == 0 || (int)blockIdx.y * BLOCK_OUT + i < OUT)
            scale_shift[i] = scale[blockIdx.y * BLOCK_OUT + i],
            scale_shift[BLOCK_OUT + i] = shift[blockIdx.y * BLOCK_OUT + i];
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();

    const u32 my_tiles = tiles_smem + warpgroup * TILE_STAGES * TILE_BYTES;
    const u32 my_tile_full = tile_full + warpgroup * TILE_STAGES * 8;
    auto load_tile = [&](int round) {
        const int tile = round * tiles_per_round + blockIdx.x * WARPGROUPS + warpgroup, stage = round % TILE_STAGES;
        if (tile >= tiles || !is_leader) return;
        mbarrier_expect_tx(my_tile_full + 8 * stage, PANELS * PIXELS * 128);
        for (int panel = 0; panel < PANELS; panel++)  // TMA fills pixels outside the image with zeros
            tma_load_4d(my_tiles + stage * TILE_BYTES + panel * PANEL_BYTES, &x, panel * 64,
                        tile % TILES_X * COLUMNS - 1, tile / TILES_X % TILES_Y * ROWS - 1, tile / (TILES_Y * TILES_X),
                        my_tile_full + 8 * stage);
    };
    auto load_weights = [&](int stage, int part) {
        const u32 mbarrier = weights_full + 8 * stage;
        mbarrier_expect_tx(mbarrier, PART_BYTES);
        tma_load_3d(weights_smem + stage * PART_BYTES, &weights, part % PANELS * 64, part / PANELS,
                    blockIdx.y * BLOCK_OUT, mbarrier);
    };
    for (int round = 0; round < TILE_STAGES; round++) load_tile(round);
    if (thread == 0)
        for (int part = 0; part < WEIGHT_STAGES; part++) load_weights(part, part);

    int weight_stage = 0, weight_phase = 0;
    // Release the stage before `weight_stage`. Once all warpgroups have, load a later part of the weights into it.
    auto refill_weights = [&](int parts_done) {
        if (!is_leader) return;
        const int released = weight_stage ? weight_stage - 1 : WEIGHT_STAGES - 1;
        if (WARPGROUPS > 1 && thread) mbarrier_arrive(weights_empty + 8 * released);
        if (thread || parts_done + WEIGHT_STAGES >= rounds * WEIGHT_PARTS) return;
        if (WARPGROUPS > 1) mbarrier_wait(weights_empty + 8 * released, parts_done / WEIGHT_STAGES & 1);
        load_weights(released, (parts_done + WEIGHT_STAGES) % WEIGHT_PARTS);
    };

    const int quad_lane = lane % 4;
    float sums[SUM_REGISTERS] = {};  // per 32 channels: sixteen of this lane, or the two it keeps after a reduction
    for (int round = 0; round < rounds; round++) {
        const int tile = round * tiles_per_round + blockIdx.x * WARPGROUPS + warpgroup, stage = round % TILE_STAGES;
        if (RESIDENT_WEIGHTS && tile >= tiles) break;
        float acc[SUBTILES][BLOCK_OUT / 2];
        size_t pixels[SUBTILES][2];  // those of this lane
#pragma unroll
        for (int m = 0; m < SUBTILES; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row =
                    tile / TILES_X % TILES_Y * ROWS + m / (COLUMNS / 8) * 8 + thread % 128 / 32 * 2 + half;
                const int column = tile % TILES_X * COLUMNS + m % (COLUMNS / 8) * 8 + lane / 4;
                pixels[m][half] = (size_t)(tile / (TILES_Y * TILES_X) * HEIGHT + row) * WIDTH + column;
            }
        u32 addends[SUBTILES][2][BLOCK_OUT / 8], factors[SUBTILES][2][BLOCK_OUT / 8];
        auto load_operands = [&](int first, int end) {  // of the epilogue, in the order in which outputs are stored
#pragma unroll
            for (int j = 0; j < BLOCK_OUT / 8; j += j + 4 <= BLOCK_OUT / 8 ? 4 : 1) {
                const int words = j + 4 <= BLOCK_OUT / 8 ? 4 : 1;
                const int output = blockIdx.y * BLOCK_OUT + j * 8 + quad_lane * words * 2;
                if (OUT % BLOCK_OUT && output >= OUT) continue;
#pragma unroll
                for (int m = first; m < end; m++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const size_t offset = pixels[m][half] * OUT + output;
                        if (ADD) load_words(addend + offset, addends[m][half] + j, words);
                        if (READS_FACTOR) load_words(factor + offset, factors[m][half] + j, words);
                    }
            }
        };
        if (tile < tiles) load_operands(0, PREFETCHED);
#pragma unroll
        for (int i = PREFETCHED * 2; i < SUBTILES * 2 && PREFETCH_REGISTERS && tile < tiles; i++)
#pragma unroll
            for (int j = 0; j < BLOCK_OUT; j += 32) {  // the operands of the other subtiles: to L2
                const int block_channel = j + quad_lane * 8, output = blockIdx.y * BLOCK_OUT + block_channel;
                if ((BLOCK_OUT % 32 && block_channel >= BLOCK_OUT) || (OUT % BLOCK_OUT && output >= OUT)) continue;
                const size_t offset = pixels[i / 2][i % 2] * OUT + output;
                if (ADD) asm volatile("prefetch.global.L2 [%0];" ::"l"(addend + offset));
                if (READS_FACTOR) asm volatile("prefetch.global.L2 [%0];" ::"l"(factor + offset));
            }
        const u64 tile_descriptor = wgmma_descriptor(my_tiles + stage * TILE_BYTES, PITCH * 128);
        if (tile < tiles) mbarrier_wait(my_tile_full + 8 * stage, round / TILE_STAGES & 1);
        // Ping-pong: half of the warpgroups keep the tensor cores busy while the others run their epilogue.
        if (PING_PONG && (round > 0 || warpgroup >= HALF))
            mbarrier_wait(turn + 8 * warpgroup, round - (warpgroup < HALF) & 1);
#pragma unroll 1
        for (int tap = 0; tap < 9; tap++)
#pragma unroll
            for (int panel = 0; panel < PANELS; panel++) {
                if (RESIDENT_WEIGHTS) weight_stage = tap * PANELS + panel;
                if (!RESIDENT_WEIGHTS || round == 0)
                    mbarrier_wait(weights_full + 8 * weight_stage, RESIDENT_WEIGHTS ? 0 : weight_phase & 1);
                const u64 a = tile_descriptor + (tap / 3 * PITCH + tap % 3) * 8 + panel * (PANEL_BYTES / 16);
                const u64 b = wgmma_descriptor(weights_smem + weight_stage * PART_BYTES, 1024);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < (panel == PANELS - 1 ? LAST_K_STEPS : 4); k++)
#pragma unroll
                    for (int m = 0; m < SUBTILES; m++)
                        wgmma(tap + panel + k > 0, acc[m],
                              a + (m / (COLUMNS / 8) * PITCH + m % (COLUMNS / 8)) * 64 + 2 * k, b + 2 * k);
                wgmma_commit();
                if (!RESIDENT_WEIGHTS) {
                    wgmma_wait<1>();
                    if (tap + panel > 0) refill_weights(round * WEIGHT_PARTS + tap * PANELS + panel - 1);
                    if (++weight_stage == WEIGHT_STAGES) weight_stage = 0, weight_phase++;
                }
            }
        if (PING_PONG && is_leader) mbarrier_arrive(turn + 8 * ((warpgroup + HALF) % WARPGROUPS));
        wgmma_wait<0>();
        if (!RESIDENT_WEIGHTS) refill_weights(round * WEIGHT_PARTS + WEIGHT_PARTS - 1);
        if (round + TILE_STAGES < rounds) {
            warpgroup_sync(warpgroup);
            load_tile(round + TILE_STAGES);
        }
        if (tile >= tiles) break;

        // Epilogue.
        u32 outputs[SUBTILES][2][BLOCK_OUT / 8];
#pragma unroll
        for (int m = 0; m < SUBTILES; m++)
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int j = 0; j < BLOCK_OUT / 8; j++) {
                    u32* w = outputs[m][half] + j / 4 * 4;
                    float out[2] = {acc[m][4 * j + 2 * half], acc[m][4 * j + 2 * half + 1]};
#pragma unroll
                    for (int k = 0; k < 2 && EPILOGUE == AFFINE_RELU; k++) {
                        const float* affine = scale_shift + j * 8 + quad_lane * 2 + k;
                        const float value = affine[0] * out[k] + affine[BLOCK_OUT];
                        out[k] = value < 0.f ? 0.f : value;
                    }
                    w[j % 4] = pack_bf16x2(out[0], out[1]);
                    if (j % 4 < 3) continue;
                    // Four lanes hold two channels each of four groups of eight. They transpose, so that each holds one
                    // group of eight and stores 16 bytes.
                    u32 t;
                    t = __shfl_xor_sync(~0u, quad_lane & 1 ? w[0] : w[1], 1), (quad_lane & 1 ? w[0] : w[1]) = t;
                    t = __shfl_xor_sync(~0u, quad_lane & 1 ? w[2] : w[3], 1), (quad_lane & 1 ? w[2] : w[3]) = t;
                    t = __shfl_xor_sync(~0u, quad_lane & 2 ? w[0] : w[2], 2), (quad_lane & 2 ? w[0] : w[2]) = t;
                    t = __shfl_xor_sync(~0u, quad_lane & 2 ? w[1] : w[3], 2), (quad_lane & 2 ? w[1] : w[3]) = t;
                }
        load_operands(PREFETCHED, SUBTILES);
#pragma unroll
        for (int j = 0; j < BLOCK_OUT / 8; j += 4) {
            const bool is_transposed = j + 4 <= BLOCK_OUT / 8;
            const int output = j * 8 + quad_lane * (is_transposed ? 8 : 2);
            float scales[8], shifts[8], round_sums[16] = {};
            float* to_sums = LANE_SUMS ? sums + j * 4 : round_sums;  // eight sums of outputs, then eight of products
#pragma unroll
            for (int k = 0;
                 k < 8 && j + (is_transposed ? 0 : k / 2) < BLOCK_OUT / 8 && EPILOGUE == SUM_MASKED_PRODUCTS; k++) {
                const int channel = output + (is_transposed ? k : k / 2 * 8 + k % 2);
                scales[k] = scale_shift[channel], shifts[k] = scale_shift[BLOCK_OUT + channel];
            }
#pragma unroll
            for (int m = 0; m < SUBTILES; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    u32* w = outputs[m][half] + j;
                    u16* to = y + pixels[m][half] * OUT + blockIdx.y * BLOCK_OUT + output;
#pragma unroll
                    for (int i = 0; i < 4 && j + i < BLOCK_OUT / 8; i++) {
                        if (OUT % BLOCK_OUT &&
                            (int)blockIdx.y * BLOCK_OUT + output + (is_transposed ? 0 : i * 8) >= OUT)
                            continue;
                        const u32 added = addends[m][half][j + i];
                        if (ADD)
                            w[i] = pack_bf16x2(low_bf16(w[i]) + low_bf16(added), high_bf16(w[i]) + high_bf16(added));
                        const u32 packed_factor = READS_FACTOR ? factors[m][half][j + i] : w[i];
                        if (SUMS) {
                            const float f[2] = {low_bf16(packed_factor), high_bf16(packed_factor)};
                            if (EPILOGUE == SUM_MASKED_PRODUCTS)
                                w[i] &= (scales[2 * i] * f[0] + shifts[2 * i] > 0.f ? 0xFFFFu : 0u) |
                                        (scales[2 * i + 1] * f[1] + shifts[2 * i + 1] > 0.f ? 0xFFFF0000u : 0u);
                            to_sums[2 * i] += low_bf16(w[i]), to_sums[8 + 2 * i] += low_bf16(w[i]) * f[0];
                            to_sums[2 * i + 1] += high_bf16(w[i]), to_sums[9 + 2 * i] += high_bf16(w[i]) * f[1];
                        }
                        if (!is_transposed) *(u32*)(to + i * 8) = w[i];
                    }
                    if (is_transposed && (OUT % BLOCK_OUT == 0 || (int)blockIdx.y * BLOCK_OUT + output < OUT))
                        store_16_bytes(to, w);
                }
            if (SUMS && !LANE_SUMS) {
                reduce_over_pixels(to_sums, lane);
                sums[j / 2] += to_sums[0], sums[j / 2 + 1] += to_sums[1];
            }
        }
    }
    if constexpr (SUMS) {  // over the lanes of a warp, then over the warps, always in the same order
        const int first = (lane & 4 ? 8 : 0) + (lane & 8 ? 4 : 0) + (lane & 16 ? 2 : 0);
#pragma unroll
        for (int i = 0; i < (BLOCK_OUT + 31) / 32 * 2; i++) {
            if (LANE_SUMS && i % 2 == 0) reduce_over_pixels(sums + i * 8, lane);
            const int j = i / 2 * 4, k = (first + i % 2) % 8;
            const int output =
                j + 4 <= BLOCK_OUT / 8 ? (j + quad_lane) * 8 + k : (j + k / 2) * 8 + quad_lane * 2 + k % 2;
            const float value = sums[LANE_SUMS ? i / 2 * 16 + i % 2 : i];
            if (output < BLOCK_OUT)
                warp_sums[thread / 32 * 2 * BLOCK_OUT + (first >= 8 ? BLOCK_OUT : 0) + output] = value;
        }
        __syncthreads();
        for (int i = thread; i < 2 * BLOCK_OUT; i += WARPGROUPS * 128) {
            float sum = 0;
            for (int warp = 0; warp < WARPGROUPS * 4; warp++) sum += warp_sums[warp * 2 * BLOCK_OUT + i];
            const int output = blockIdx.y * BLOCK_OUT + i % BLOCK_OUT;
            if (output < OUT) partial_sums[(size_t)(blockIdx.x * 2 + i / BLOCK_OUT) * OUT + output] = sum;
        }
    }
}
