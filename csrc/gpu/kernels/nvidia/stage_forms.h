/* Where an element of A or B lies in a stage of gemm_mma and of gemm_fma. Path of a call: their
 * main loops, which write stages by line_carrier.h. */
#ifndef MMF_STAGE_FORMS_H
#define MMF_STAGE_FORMS_H

#include "gpu/kernels/common/device.h"
#include "gpu/kernels/nvidia/mma_args.h"

/* With which chunk of its row a chunk of 16 bytes changes places: a mask of chunk numbers. */
template <int Size, bool AlongK> MMF_DEVICE constexpr int swapped_by(int down)
{
    return Size == 2 || (Size == 4 && AlongK) ? down & 7 : (down & 3) << 1;
}

/* Element (line, k) of Lines lines. Along k, a line is 128 bytes; else k is the row. Chunks of 16
 * bytes are swapped so that what a warp reads at once (fragments of 8 lines by 16 bytes, or of 8
 * lines by 4 k) lies in different banks. */
template <int Size, int Lines, bool AlongK> MMF_DEVICE unsigned slot(int line, int k)
{
    const int across = AlongK ? k : line, down = AlongK ? line : k;
    const int pitch = AlongK ? (int)MMF_MMA_LINE : Lines * Size;
    return down * pitch + ((across * Size / 16 ^ swapped_by<Size, AlongK>(down)) << 4) +
           across * Size % 16;
}

/* Of gemm_mma: K elements of each line. */
template <int Size, int Lines> struct swapped_chunks {
    enum {
        STAGES = MMF_MMA_STAGES,
        K = MMF_MMA_LINE / Size,
        BYTES = Lines * MMF_MMA_LINE,
        K_IS_ROW = 0,
    };
    template <bool AlongK> static __attribute__((device, always_inline)) int place(int line, int k)
    {
        return (int)slot<Size, Lines, AlongK>(line, k);
    }
    /* Bytes between what is so many lines, or k, apart. */
    template <bool AlongK> static __attribute__((device)) constexpr int step(int apart)
    {
        return apart * (AlongK ? (int)MMF_MMA_LINE : Lines * Size);
    }
    /* Which bit changes in every second one of them. */
    template <bool AlongK> static __attribute__((device)) constexpr int swap(int apart)
    {
        return swapped_by<Size, AlongK>(apart) << 4;
    }
    template <bool AlongK>
    static __attribute__((device, always_inline)) unsigned other_half(unsigned place)
    {
        return AlongK ? place + Lines / 2 * MMF_MMA_LINE : place ^ Lines / 2 * Size;
    }
};

/* Of gemm_fma: k is the row, so that four lines at one k are one load. A row begins four banks
 * behind the one before: 8 k of 4 lines lie in different banks. */
template <int Lines, int Count> struct padded_rows {
    enum {
        STAGES = MMF_FMA_STAGES,
        K = Count,
        PITCH = (Lines + MMF_MMA_PADDING) * 4,
        BYTES = K * PITCH,
        K_IS_ROW = 1,
    };
    template <bool> static __attribute__((device, always_inline)) int place(int line, int k)
    {
        return k * PITCH + line * 4;
    }
    template <bool AlongK> static __attribute__((device)) constexpr int step(int apart)
    {
        return apart * (AlongK ? 4 : (int)PITCH);
    }
    template <bool> static __attribute__((device)) constexpr int swap(int)
    {
        return 0;
    }
    template <bool>
    static __attribute__((device, always_inline)) unsigned other_half(unsigned place)
    {
        return place + Lines / 2 * 4;
    }
};

#endif
