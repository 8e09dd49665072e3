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

constexpr int64_t kAtOnce = 16;  // pixels

// 16 samples as 16-bit values.
__m256i load(const uint8_t* samples) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(samples)));
}

// 16 bytes in both halves.
__m256i order(__m128i bytes) { return _mm256_broadcastsi128_si256(bytes); }

// Stores 16 pixels, 48 bytes, from 16-bit values; values outside 0 ... 255 are clamped.
void store(__m256i first, __m256i second, __m256i third, uint8_t* out) {
  const __m256i pairs = _mm256_packus_epi16(first, second);
  const __m256i single = _mm256_packus_epi16(third, third);
  const __m256i start = _mm256_or_si256(
      _mm256_shuffle_epi8(
          pairs, order(_mm_setr_epi8(0, 8, -1, 1, 9, -1, 2, 10, -1, 3, 11, -1, 4, 12, -1, 5))),
      _mm256_shuffle_epi8(
          single, order(_mm_setr_epi8(-1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1))));
  const __m256i end = _mm256_or_si256(
      _mm256_shuffle_epi8(pairs, order(_mm_setr_epi8(13, -1, 6, 14, -1, 7, 15, -1, -1, -1, -1, -1,
                                                     -1, -1, -1, -1))),
      _mm256_shuffle_epi8(single, order(_mm_setr_epi8(-1, 5, -1, -1, 6, -1, -1, 7, -1, -1, -1, -1,
                                                      -1, -1, -1, -1))));
  // Each half holds 8 pixels: 16 bytes of `start` and 8 of `end`.
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(start));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out + 16), _mm256_castsi256_si128(end));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 24), _mm256_extracti128_si256(start, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out + 40), _mm256_extracti128_si256(end, 1));
}

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
  void operator()(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, uint8_t* out) const {
    const __m256i middle = _mm256_set1_epi16(128), luma = load(y);
    const __m256i b = _mm256_sub_epi16(load(cb), middle), r = _mm256_sub_epi16(load(cr), middle);
    // The factors above 1 << 15 are split: 91881 = 65536 + 26345, 116130 = 2 * 65536 - 14942.
    const __m256i red = _mm256_add_epi16(scaled(r, kCrToRed - (1 << 16)), r);
    const __m256i blue = _mm256_add_epi16(scaled(b, kCbToBlue - (2 << 16)), _mm256_add_epi16(b, b));
    const __m256i green = _mm256_sub_epi16(green_of(b, r), r);
    store(_mm256_add_epi16(luma, red), _mm256_add_epi16(luma, green), _mm256_add_epi16(luma, blue),
          out);
  }
};

struct Unchanged {
  void operator()(const uint8_t* a, const uint8_t* b, const uint8_t* c, uint8_t* out) const {
    store(load(a), load(b), load(c), out);
  }
};

template <typename Pixels>
void for_each_pixel(const uint8_t* a, const uint8_t* b, const uint8_t* c, int64_t width,
                    uint8_t* out, Pixels pixels) {
  int64_t x = 0;
  for (; x + kAtOnce <= width; x += kAtOnce) pixels(a + x, b + x, c + x, out + 3 * x);
  if (x == width) return;
  uint8_t last[3 * kAtOnce];
  pixels(a + x, b + x, c + x, last);
  std::memcpy(out + 3 * x, last, static_cast<size_t>(3 * (width - x)));
}

}  // namespace

#else

namespace {

uint8_t clamped(int value) { return static_cast<uint8_t>(std::clamp(value, 0, 255)); }

int rounded(int value) { return (value + (1 << 15)) >> 16; }

struct ToRgb {
  void operator()(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, uint8_t* out) const {
    const int b = *cb - 128, r = *cr - 128;
    out[0] = clamped(*y + rounded(kCrToRed * r));
    out[1] = clamped(*y + rounded(kCbToGreen * b + kCrToGreen * r));
    out[2] = clamped(*y + rounded(kCbToBlue * b));
  }
};

struct Unchanged {
  void operator()(const uint8_t* a, const uint8_t* b, const uint8_t* c, uint8_t* out) const {
    out[0] = *a;
    out[1] = *b;
    out[2] = *c;
  }
};

template <typename Pixels>
void for_each_pixel(const uint8_t* a, const uint8_t* b, const uint8_t* c, int64_t width,
                    uint8_t* out, Pixels pixels) {
  for (int64_t x = 0; x < width; ++x) pixels(a + x, b + x, c + x, out + 3 * x);
}

}  // namespace

#endif

void ycbcr_to_rgb(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int64_t width,
                  uint8_t* rgb) {
  for_each_pixel(y, cb, cr, width, rgb, ToRgb{});
}

void interleave(const uint8_t* first, const uint8_t* second, const uint8_t* third, int64_t width,
                uint8_t* out) {
  for_each_pixel(first, second, third, width, out, Unchanged{});
}

}  // namespace custom_op
