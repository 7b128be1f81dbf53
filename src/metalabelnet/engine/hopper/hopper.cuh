// Building blocks of kernels for compute capability 9.0: mbarriers, TMA loads, wgmma, bfloat16 pairs.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(64) TensorMap {  // CUtensorMap: the layout of a tensor, encoded by the driver
    u64 words[16];
};

__device__ __forceinline__ void prefetch_tensor_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ __forceinline__ void mbarrier_init(u32 mbarrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mbarrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(u32 mbarrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(mbarrier) : "memory");
}
__device__ __forceinline__ void mbarrier_expect_tx(u32 mbarrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mbarrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_wait(u32 mbarrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred complete;\nretry:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
        "@complete bra done;\nbra retry;\ndone:\n}" ::"r"(mbarrier), "r"(parity) : "memory");
}
// TMA load of a box of a 4D tensor (image, row, column, channel) to shared memory.
__device__ __forceinline__ void tma_load_4d(u32 to, const TensorMap* from, int channel, int column, int row, int image,
                                            u32 mbarrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2, %3, %4, %5}], [%6];" ::"r"(to), "l"(from), "r"(channel), "r"(column), "r"(row), "r"(image), "r"(mbarrier) : "memory");
}
__device__ __forceinline__ void warpgroup_sync(int warpgroup) {
    asm volatile("bar.sync %0, 128;" ::"r"(warpgroup + 1) : "memory");
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// A wgmma descriptor of a matrix in shared memory with rows of 128 bytes and the 128-byte swizzle. `stride` is the
// number of bytes from eight rows to the next eight. For a transposed operand, `leading` is the number of bytes from 64
// columns to the next 64.
__device__ __forceinline__ u64 wgmma_descriptor(u32 address, u32 stride, u32 leading = 16) {
    return (u64)(address >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | (u64)1 << 62;
}
// Two bfloat16 values in one register.
__device__ __forceinline__ u32 pack_bf16x2(float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
__device__ __forceinline__ float low_bf16(u32 packed) { return __uint_as_float(packed << 16); }
__device__ __forceinline__ float high_bf16(u32 packed) { return __uint_as_float(packed & 0xFFFF0000u); }
__device__ __forceinline__ void load_shared(u32 from, u32* v) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(from));
}
__device__ __forceinline__ void store_shared(u32 to, const u32* v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}
