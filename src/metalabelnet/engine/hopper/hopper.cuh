// What kernels for tensor cores of compute capability 9.0 are made of.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(64) Map {  // how a tensor lies in memory, as the driver encodes it
    u64 words[16];
};

__device__ __forceinline__ void expect_map(const Map* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\nbra again;\nover:\n}" ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void bring_box(u32 to, const Map* from, int channel, int column, int row, int image,
                                          u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
        "[%6];" ::"r"(to), "l"(from), "r"(channel), "r"(column), "r"(row), "r"(image), "r"(barrier) : "memory");
}
__device__ __forceinline__ void sync_group(int group) {
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}
__device__ __forceinline__ void mma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void mma_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int left> __device__ __forceinline__ void mma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}
// A matrix for wgmma: rows of 128 bytes, swizzled, `stride` bytes from eight rows to the next eight. Where numbers that
// are multiplied with each other lie in different rows, `next` bytes from 64 columns to the next 64.
__device__ __forceinline__ u64 matrix(u32 at, u32 stride, u32 next = 16) {
    return (u64)(at >> 4) | (u64)(next >> 4) << 16 | (u64)(stride >> 4) << 32 | (u64)1 << 62;
}
// Two numbers in bfloat16.
__device__ __forceinline__ u32 two(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ __forceinline__ float low(u32 both) { return __uint_as_float(both << 16); }
__device__ __forceinline__ float high(u32 both) { return __uint_as_float(both & 0xFFFF0000u); }
__device__ __forceinline__ void load_shared(u32 from, u32* v) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(from));
}
__device__ __forceinline__ void store_shared(u32 to, const u32* v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}
