#include "augment/recolor.h"

#include <algorithm>
#include <cstring>
#include <vector>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace custom_op {
namespace {

// What vector code writes past a row.
constexpr int64_t kGrayPadding = 16;

uint8_t truncated(float value) {
  return static_cast<uint8_t>(static_cast<int>(std::min(std::max(value, 0.F), 255.F)));
}

uint8_t blended(uint8_t base, uint8_t other, float factor) {
  // In this form, a large factor gives no infinity minus infinity.
  return truncated(base + static_cast<float>(other - base) * factor);
}

#ifdef __AVX2__

// Compilers extend and pack bytes in far more steps.
__m256i blended(const uint8_t* base, const uint8_t* other, __m256 factor) {
  const auto load = [](const uint8_t* at) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
  };
  const __m256i from = load(base), difference = _mm256_sub_epi32(load(other), from);
  const __m256 moved = _mm256_mul_ps(_mm256_cvtepi32_ps(difference), factor);
  const __m256 value = _mm256_add_ps(_mm256_cvtepi32_ps(from), moved);
  const __m256 most = _mm256_set1_ps(255);
  return _mm256_cvttps_epi32(_mm256_min_ps(_mm256_max_ps(value, _mm256_setzero_ps()), most));
}

// Blends a multiple of 32 values; returns how many.
int64_t blend_vectors(const uint8_t* base, const uint8_t* other, float factor, int64_t values,
                      uint8_t* out) {
  const __m256 factors = _mm256_set1_ps(factor);
  // Packing works within each half of the registers, four values at a time.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  int64_t i = 0;
  for (; i + 32 <= values; i += 32) {
    const auto at = [&](int64_t j) { return blended(base + i + j, other + i + j, factors); };
    const __m256i first = _mm256_packs_epi32(at(0), at(8));
    const __m256i bytes = _mm256_packus_epi16(first, _mm256_packs_epi32(at(16), at(24)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                        _mm256_permutevar8x32_epi32(bytes, order));
  }
  return i;
}

// The gray of 8 pixels at a time, three times each. Reads and writes 4 bytes past the last one of
// them; returns how many values it has written.
int64_t gray_vectors(const uint8_t* pixels, int64_t values, uint8_t* out) {
  const auto in_both = [](__m128i half) { return _mm256_broadcastsi128_si256(half); };
  const auto channel = [&](char c) {
    const char x = -1;
    return in_both(_mm_setr_epi8(c, x, x, x, static_cast<char>(c + 3), x, x, x,
                                 static_cast<char>(c + 6), x, x, x, static_cast<char>(c + 9), x, x,
                                 x));
  };
  const __m256i red = channel(0), green = channel(1), blue = channel(2);
  const __m256i thrice =
      in_both(_mm_setr_epi8(0, 0, 0, 4, 4, 4, 8, 8, 8, 12, 12, 12, -1, -1, -1, -1));
  int64_t i = 0;
  for (; i + 24 <= values; i += 24) {
    const auto half = [&](int64_t j) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(pixels + i + j));
    };
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(half(0)), half(12), 1);
    const auto weighted = [&](__m256i order, float weight) {
      const __m256 level = _mm256_cvtepi32_ps(_mm256_shuffle_epi8(both, order));
      return _mm256_mul_ps(level, _mm256_set1_ps(weight));
    };
    const __m256 sum =
        _mm256_add_ps(_mm256_add_ps(weighted(red, kRedWeight), weighted(green, kGreenWeight)),
                      weighted(blue, kBlueWeight));
    const __m256i gray = _mm256_shuffle_epi8(_mm256_cvttps_epi32(sum), thrice);
    auto* const to = reinterpret_cast<__m128i*>(out + i);
    _mm_storeu_si128(to, _mm256_castsi256_si128(gray));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i + 12), _mm256_extracti128_si256(gray, 1));
  }
  return i;
}

#else

int64_t blend_vectors(const uint8_t*, const uint8_t*, float, int64_t, uint8_t*) { return 0; }
int64_t gray_vectors(const uint8_t*, int64_t, uint8_t*) { return 0; }

#endif

// The gray of each pixel, three times. `out` has kGrayPadding bytes more.
void gray_row(const uint8_t* pixels, int64_t values, uint8_t* out) {
  for (int64_t i = gray_vectors(pixels, values, out); i < values; i += 3) {
    const auto gray = static_cast<uint8_t>(gray_of(pixels[i], pixels[i + 1], pixels[i + 2]));
    out[i] = out[i + 1] = out[i + 2] = gray;
  }
}

// A row of gray_row().
std::vector<uint8_t> gray_buffer(const Canvas& canvas) {
  return std::vector<uint8_t>(static_cast<size_t>(canvas.row_values() + kGrayPadding));
}

// Pixels that are changed at once; the canvas has room for as many past the last one.
constexpr int kHueTile = 16;
using HueTile = std::array<int32_t, kHueTile>;  // red, green and blue in the lowest three bytes

// Reads one byte more.
HueTile load_pixels(const uint8_t* at) {
  HueTile pixels;
  for (size_t i = 0; i < kHueTile; ++i) std::memcpy(&pixels[i], at + 3 * i, 4);
  return pixels;
}

void store_pixels(const HueTile& pixels, uint8_t* at) {
  // The fourth byte is written again by the next pixel, which the last one does not have.
  for (size_t i = 0; i < kHueTile - 1; ++i) std::memcpy(at + 3 * i, &pixels[i], 4);
  std::memcpy(at + 3 * (kHueTile - 1), &pixels.back(), 3);
}

// The conversion to HSV and back in one: with V the largest value and C the range of the values, a
// channel is V - C * clamp(min(k, 4 - k), 0, 1), where k is the hue's distance on a circle of
// length 6 from 5, 3 and 1 for red, green and blue.
int32_t hue_shifted(int32_t pixel, float shift) {
  const auto red = static_cast<float>(pixel & 255);
  const auto green = static_cast<float>(pixel >> 8 & 255);
  const auto blue = static_cast<float>(pixel >> 16 & 255);
  const float largest = std::max(std::max(red, green), blue);
  const float range = largest - std::min(std::min(red, green), blue);
  const float unit = 1 / std::max(range, 1.F);
  const float of_red = (green - blue) * unit;
  const float of_green = (blue - red) * unit + 2, of_blue = (red - green) * unit + 4;
  const float hue = (largest == red ? of_red : largest == green ? of_green : of_blue) + shift;
  const auto channel = [=](float offset) {  // hue + offset: from 0 to 16
    float k = hue + offset;
    k -= k >= 12 ? 12.F : k >= 6 ? 6.F : 0.F;
    const float low = std::min(std::max(std::min(k, 4 - k), 0.F), 1.F);
    return static_cast<int32_t>((largest - range * low) * (255.999F / 255));
  };
  return channel(5) | channel(3) << 8 | channel(1) << 16;
}

}  // namespace

void blend(const uint8_t* base, const uint8_t* other, float factor, int64_t values, uint8_t* out) {
  for (int64_t i = blend_vectors(base, other, factor, values, out); i < values; ++i) {
    out[i] = blended(base[i], other[i], factor);
  }
}

void grayscale(Canvas& canvas) {
  std::vector<uint8_t> gray = gray_buffer(canvas);
  for (int64_t y = 0; y < canvas.size(); ++y) {
    gray_row(canvas.row(y), canvas.row_values(), gray.data());
    std::copy_n(gray.data(), canvas.row_values(), canvas.row(y));
  }
}

void saturate(Canvas& canvas, float factor) {
  std::vector<uint8_t> gray = gray_buffer(canvas);
  for (int64_t y = 0; y < canvas.size(); ++y) {
    gray_row(canvas.row(y), canvas.row_values(), gray.data());
    blend(gray.data(), canvas.row(y), factor, canvas.row_values(), canvas.row(y));
  }
}

void shift_hue(Canvas& canvas, float turn) {
  const float shift = 6 * (turn < 0 ? turn + 1 : turn);
  uint8_t* const values = canvas.row(0);
  const int64_t count = canvas.values();
  for (int64_t i = 0; i < count; i += 3 * kHueTile) {
    HueTile pixels = load_pixels(values + i);
    // Compilers vectorize this loop.
    for (int32_t& pixel : pixels) pixel = hue_shifted(pixel, shift);
    store_pixels(pixels, values + i);
  }
}

}  // namespace custom_op
