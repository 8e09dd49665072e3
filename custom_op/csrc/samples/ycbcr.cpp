#include "samples/ycbcr.h"

#include <algorithm>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace custom_op {
namespace {

// Factors of the conversion with 16 fractional bits.
constexpr int kCrToRed = 91881, kCbToBlue = 116130, kCbToGreen = -22554, kCrToGreen = -46802;

}  // namespace

#ifdef __AVX2__

namespace {

// Registers hold 16 values of 16 bits; chroma is centered at 0.
struct Pixels {
  __m256i first, second, third;
};

// (value * factor + (1 << 15)) >> 16 for a factor that fits into 16 bits. The product is doubled,
// so that halving it rounds.
__m256i scaled(__m256i value, int factor) {
  const __m256i doubled = _mm256_mulhi_epi16(_mm256_add_epi16(value, value),
                                             _mm256_set1_epi16(static_cast<int16_t>(factor)));
  return _mm256_srai_epi16(_mm256_add_epi16(doubled, _mm256_set1_epi16(1)), 1);
}

// (cb * kCbToGreen + cr * (kCrToGreen + (1 << 16)) + (1 << 15)) >> 16.
__m256i green_of(__m256i cb, __m256i cr) {
  constexpr auto kCb = static_cast<uint16_t>(kCbToGreen);
  constexpr auto kCr = static_cast<uint16_t>(kCrToGreen + (1 << 16));
  const __m256i factors = _mm256_set1_epi32(static_cast<int>(uint32_t{kCr} << 16 | kCb));
  const __m256i half = _mm256_set1_epi32(1 << 15);
  const auto sum = [&](__m256i pairs) {
    const __m256i product = _mm256_madd_epi16(pairs, factors);
    return _mm256_srai_epi32(_mm256_add_epi32(product, half), 16);
  };
  return _mm256_packs_epi32(sum(_mm256_unpacklo_epi16(cb, cr)), sum(_mm256_unpackhi_epi16(cb, cr)));
}

struct ToRgb {
  Pixels operator()(__m256i y, __m256i cb, __m256i cr) const {
    // The factors above 1 << 15 are split: 91881 = 65536 + 26345, 116130 = 2 * 65536 - 14942.
    const __m256i red = _mm256_add_epi16(scaled(cr, kCrToRed - (1 << 16)), cr);
    const __m256i blue =
        _mm256_add_epi16(scaled(cb, kCbToBlue - (2 << 16)), _mm256_add_epi16(cb, cb));
    const __m256i green = _mm256_sub_epi16(green_of(cb, cr), cr);
    return {_mm256_add_epi16(y, red), _mm256_add_epi16(y, green), _mm256_add_epi16(y, blue)};
  }
};

struct Unchanged {
  Pixels operator()(__m256i y, __m256i cb, __m256i cr) const {
    const __m256i center = _mm256_set1_epi16(128);
    return {y, _mm256_add_epi16(cb, center), _mm256_add_epi16(cr, center)};
  }
};

__m256i load(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }

__m256i load_bytes(const uint8_t* samples) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(samples)));
}

__m256i in_both_halves(__m128i order) { return _mm256_broadcastsi128_si256(order); }

// Stores 8 pixels, 24 bytes, from each half of the registers; values are clamped to 0 ... 255.
void store(const Pixels& pixels, uint8_t* low, uint8_t* high) {
  const __m256i pairs = _mm256_packus_epi16(pixels.first, pixels.second);
  const __m256i single = _mm256_packus_epi16(pixels.third, pixels.third);
  const __m256i start = _mm256_or_si256(
      _mm256_shuffle_epi8(pairs, in_both_halves(_mm_setr_epi8(0, 8, -1, 1, 9, -1, 2, 10, -1, 3, 11,
                                                              -1, 4, 12, -1, 5))),
      _mm256_shuffle_epi8(single, in_both_halves(_mm_setr_epi8(-1, -1, 0, -1, -1, 1, -1, -1, 2, -1,
                                                               -1, 3, -1, -1, 4, -1))));
  const __m256i end = _mm256_or_si256(
      _mm256_shuffle_epi8(pairs, in_both_halves(_mm_setr_epi8(13, -1, 6, 14, -1, 7, 15, -1, -1, -1,
                                                              -1, -1, -1, -1, -1, -1))),
      _mm256_shuffle_epi8(single, in_both_halves(_mm_setr_epi8(-1, 5, -1, -1, 6, -1, -1, 7, -1, -1,
                                                               -1, -1, -1, -1, -1, -1))));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(low), _mm256_castsi256_si128(start));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(low + 16), _mm256_castsi256_si128(end));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(high), _mm256_extracti128_si256(start, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(high + 16), _mm256_extracti128_si256(end, 1));
}

// Calls chunk(x, at) for every kPixels pixels from `first`, 0 or -1, on; `at` is where to write
// them. Chunks that are not inside the row go through a buffer.
template <int64_t kPixels, typename Chunk>
void for_each_chunk(int64_t first, int64_t width, uint8_t* out, Chunk chunk) {
  for (int64_t x = first; x < width; x += kPixels) {
    if (x >= 0 && x + kPixels <= width) {
      chunk(x, out + 3 * x);
      continue;
    }
    uint8_t buffer[3 * kPixels];
    chunk(x, buffer);
    const int64_t from = std::max<int64_t>(x, 0), to = std::min(x + kPixels, width);
    std::memcpy(out + 3 * from, buffer + 3 * (from - x), static_cast<size_t>(3 * (to - from)));
  }
}

template <typename Convert>
void write(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int64_t width, Convert convert,
           uint8_t* out) {
  const __m256i center = _mm256_set1_epi16(128);
  for_each_chunk<16>(0, width, out, [&](int64_t x, uint8_t* at) {
    const __m256i b = _mm256_sub_epi16(load_bytes(cb + x), center);
    const __m256i r = _mm256_sub_epi16(load_bytes(cr + x), center);
    store(convert(load_bytes(y + x), b, r), at, at + 24);
  });
}

// The left and the right pixels of 16 chroma samples.
struct Doubled {
  __m256i left, right;
};

Doubled double_width(const uint16_t* sums, __m256i rounding_left, __m256i rounding_right) {
  const __m256i own = load(sums), three = _mm256_add_epi16(own, _mm256_add_epi16(own, own));
  const auto rounded = [&](const uint16_t* next, __m256i rounding) {
    const __m256i sum = _mm256_add_epi16(three, _mm256_add_epi16(load(next), rounding));
    return _mm256_srai_epi16(sum, 4);
  };
  return {rounded(sums - 1, rounding_left), rounded(sums + 1, rounding_right)};
}

template <typename Convert>
void write(const uint8_t* y, const HalfRow& chroma, bool starts_right, int64_t width,
           Convert convert, uint8_t* out) {
  const int64_t first = starts_right ? -1 : 0;
  // Sums of 16 samples, centered at 0.
  const auto left = _mm256_set1_epi16(static_cast<int16_t>(chroma.rounding_left - 16 * 128));
  const auto right = _mm256_set1_epi16(static_cast<int16_t>(chroma.rounding_right - 16 * 128));
  for_each_chunk<32>(first, width, out, [&](int64_t x, uint8_t* at) {
    const int64_t i = (x - first) / 2;
    const Doubled b = double_width(chroma.cb + i, left, right);
    const Doubled r = double_width(chroma.cr + i, left, right);
    const __m256i luma = load(y + x);
    const Pixels even = convert(_mm256_and_si256(luma, _mm256_set1_epi16(255)), b.left, r.left);
    const Pixels odd = convert(_mm256_srli_epi16(luma, 8), b.right, r.right);
    // Pixels 0 ... 7 and 16 ... 23, then the others.
    store({_mm256_unpacklo_epi16(even.first, odd.first),
           _mm256_unpacklo_epi16(even.second, odd.second),
           _mm256_unpacklo_epi16(even.third, odd.third)},
          at, at + 48);
    store({_mm256_unpackhi_epi16(even.first, odd.first),
           _mm256_unpackhi_epi16(even.second, odd.second),
           _mm256_unpackhi_epi16(even.third, odd.third)},
          at + 24, at + 72);
  });
}

}  // namespace

#else

namespace {

uint8_t clamped(int value) { return static_cast<uint8_t>(std::clamp(value, 0, 255)); }

int rounded(int value) { return (value + (1 << 15)) >> 16; }

struct ToRgb {
  void operator()(int y, int cb, int cr, uint8_t* out) const {
    const int b = cb - 128, r = cr - 128;
    out[0] = clamped(y + rounded(kCrToRed * r));
    out[1] = clamped(y + rounded(kCbToGreen * b + kCrToGreen * r));
    out[2] = clamped(y + rounded(kCbToBlue * b));
  }
};

struct Unchanged {
  void operator()(int y, int cb, int cr, uint8_t* out) const {
    out[0] = static_cast<uint8_t>(y);
    out[1] = static_cast<uint8_t>(cb);
    out[2] = static_cast<uint8_t>(cr);
  }
};

template <typename Convert>
void write(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int64_t width, Convert convert,
           uint8_t* out) {
  for (int64_t x = 0; x < width; ++x) convert(y[x], cb[x], cr[x], out + 3 * x);
}

template <typename Convert>
void write(const uint8_t* y, const HalfRow& chroma, bool starts_right, int64_t width,
           Convert convert, uint8_t* out) {
  for (int64_t x = 0; x < width; ++x) {
    const int64_t place = starts_right ? x + 1 : x, i = place / 2;
    const bool right = place % 2 == 1;
    const int64_t next = right ? i + 1 : i - 1;
    const int rounding = right ? chroma.rounding_right : chroma.rounding_left;
    convert(y[x], (3 * chroma.cb[i] + chroma.cb[next] + rounding) >> 4,
            (3 * chroma.cr[i] + chroma.cr[next] + rounding) >> 4, out + 3 * x);
  }
}

}  // namespace

#endif

void write_pixels(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int64_t width,
                  Color color, uint8_t* out) {
  if (color == Color::kRgb) {
    write(y, cb, cr, width, ToRgb{}, out);
  } else {
    write(y, cb, cr, width, Unchanged{}, out);
  }
}

void write_pixels(const uint8_t* y, const HalfRow& chroma, bool starts_right, int64_t width,
                  Color color, uint8_t* out) {
  if (color == Color::kRgb) {
    write(y, chroma, starts_right, width, ToRgb{}, out);
  } else {
    write(y, chroma, starts_right, width, Unchanged{}, out);
  }
}

}  // namespace custom_op
