#ifdef __AVX2__

#include "samples/ycbcr.h"

#include <immintrin.h>

#include <cstring>

namespace custom_op {
namespace {

// Factors of the conversion with 16 fractional bits.
constexpr int kCrToRed = 91881, kCbToBlue = 116130, kCbToGreen = -22554, kCrToGreen = -46802;

// Registers hold 16 values of 16 bits; chroma is centered at 0.
struct Pixels {
  __m256i red, green, blue;
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

Pixels to_rgb(__m256i y, __m256i cb, __m256i cr) {
  // The factors above 1 << 15 are split: 91881 = 65536 + 26345, 116130 = 2 * 65536 - 14942.
  const __m256i red = _mm256_add_epi16(scaled(cr, kCrToRed - (1 << 16)), cr);
  const __m256i blue =
      _mm256_add_epi16(scaled(cb, kCbToBlue - (2 << 16)), _mm256_add_epi16(cb, cb));
  const __m256i green = _mm256_sub_epi16(green_of(cb, cr), cr);
  return {_mm256_add_epi16(y, red), _mm256_add_epi16(y, green), _mm256_add_epi16(y, blue)};
}

__m256i load(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }

// Where the bytes of 16 pixels come from, per channel, if the even pixels are in bytes 0 ... 7 and
// the odd ones in bytes 8 ... 15; -1 for those of another channel. Repeated for both halves.
struct alignas(32) Order {
  int8_t from[3][3][32];  // by third of the 48 bytes, channel, byte
};

constexpr Order make_order() {
  Order order{};
  for (int i = 0; i < 3 * 3 * 32; ++i) {
    const int third = i / 96, channel = i / 32 % 3, byte = 16 * third + i % 16;
    const int pixel = byte / 3, from = pixel / 2 + (pixel % 2 == 0 ? 0 : 8);
    order.from[third][channel][i % 32] = static_cast<int8_t>(byte % 3 == channel ? from : -1);
  }
  return order;
}

constexpr Order kOrder = make_order();

// Stores 32 pixels, 96 bytes; values are clamped to 0 ... 255.
void store(const Pixels& even, const Pixels& odd, uint8_t* out) {
  const __m256i channels[3] = {_mm256_packus_epi16(even.red, odd.red),
                               _mm256_packus_epi16(even.green, odd.green),
                               _mm256_packus_epi16(even.blue, odd.blue)};
  for (int third = 0; third < 3; ++third) {
    __m256i bytes = _mm256_setzero_si256();
    for (int c = 0; c < 3; ++c) {
      const __m256i picked = _mm256_shuffle_epi8(channels[c], load(kOrder.from[third][c]));
      bytes = _mm256_or_si256(bytes, picked);
    }
    auto* const at = reinterpret_cast<__m128i*>(out) + third;
    _mm_storeu_si128(at, _mm256_castsi256_si128(bytes));
    _mm_storeu_si128(at + 3, _mm256_extracti128_si256(bytes, 1));
  }
}

// The even and the odd samples of 32.
struct Halves {
  __m256i even, odd;
};

Halves halves_of(const uint8_t* samples, int center) {
  const __m256i bytes = load(samples), offset = _mm256_set1_epi16(static_cast<int16_t>(center));
  return {_mm256_sub_epi16(_mm256_and_si256(bytes, _mm256_set1_epi16(255)), offset),
          _mm256_sub_epi16(_mm256_srli_epi16(bytes, 8), offset)};
}

// Calls chunk(x, at) for every 32 pixels; `at` is where to write them. If the last ones do not
// fill a chunk, they go through a buffer.
template <typename Chunk>
void for_each_chunk(int64_t width, uint8_t* out, Chunk chunk) {
  constexpr int64_t kPixels = 32;
  int64_t x = 0;
  for (; x + kPixels <= width; x += kPixels) chunk(x, out + 3 * x);
  if (x == width) return;
  uint8_t buffer[3 * kPixels];
  chunk(x, buffer);
  std::memcpy(out + 3 * x, buffer, static_cast<size_t>(3 * (width - x)));
}

__m256i three_times(__m256i values) {
  return _mm256_add_epi16(values, _mm256_add_epi16(values, values));
}

// The chroma of 32 pixels. The even ones are the left pixels of their samples, or the right ones if
// the row starts with such a pixel.
template <bool kStartsRight>
Halves double_width(const uint16_t* sums, __m256i rounding_left, __m256i rounding_right) {
  const __m256i own = load(sums), next = load(sums + 1);
  const auto rounded = [](__m256i three, __m256i one, __m256i rounding) {
    const __m256i sum = _mm256_add_epi16(three, _mm256_add_epi16(one, rounding));
    return _mm256_srai_epi16(sum, 4);
  };
  const __m256i three = three_times(own), right = rounded(three, next, rounding_right);
  if constexpr (kStartsRight) {
    return {right, rounded(three_times(next), own, rounding_left)};
  } else {
    return {rounded(three, load(sums - 1), rounding_left), right};
  }
}

template <bool kStartsRight>
void write_half(const uint8_t* y, const HalfRow& chroma, int64_t width, uint8_t* out) {
  // Sums of 16 samples, centered at 0.
  const auto left = _mm256_set1_epi16(static_cast<int16_t>(chroma.rounding_left - 16 * 128));
  const auto right = _mm256_set1_epi16(static_cast<int16_t>(chroma.rounding_right - 16 * 128));
  for_each_chunk(width, out, [&](int64_t x, uint8_t* at) {
    const Halves luma = halves_of(y + x, 0);
    const Halves b = double_width<kStartsRight>(chroma.cb + x / 2, left, right);
    const Halves r = double_width<kStartsRight>(chroma.cr + x / 2, left, right);
    store(to_rgb(luma.even, b.even, r.even), to_rgb(luma.odd, b.odd, r.odd), at);
  });
}

}  // namespace

void write_pixels(const uint8_t* y, const uint8_t* cb, const uint8_t* cr, int64_t width,
                  uint8_t* out) {
  for_each_chunk(width, out, [&](int64_t x, uint8_t* at) {
    const Halves luma = halves_of(y + x, 0), b = halves_of(cb + x, 128), r = halves_of(cr + x, 128);
    store(to_rgb(luma.even, b.even, r.even), to_rgb(luma.odd, b.odd, r.odd), at);
  });
}

void write_pixels(const uint8_t* y, const HalfRow& chroma, bool starts_right, int64_t width,
                  uint8_t* out) {
  if (starts_right) {
    write_half<true>(y, chroma, width, out);
  } else {
    write_half<false>(y, chroma, width, out);
  }
}

}  // namespace custom_op

#endif
