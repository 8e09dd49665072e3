#include "augment/operations.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

namespace custom_op {
namespace {

constexpr float kAny = std::numeric_limits<float>::infinity();
constexpr float kPositive = std::numeric_limits<float>::min();

struct Parameter {
  const char* name = nullptr;
  float least = -kAny, most = kAny;  // both allowed
  bool whole = false;
};

struct Definition {
  const char* name;
  std::array<Parameter, kOperationColumns - 1> parameters;
};

constexpr Parameter kFactor{"factor", 0, kAny}, kTangent{"tangent"};
constexpr Parameter kPixels{"pixels", -kAny, kAny, true};
constexpr Parameter kBilinear{"bilinear", 0, 1, true};
constexpr Parameter kRed{"red", 0, 255}, kGreen{"green", 0, 255}, kBlue{"blue", 0, 255};

constexpr Parameter edge(const char* name) { return {name, 0, kAny, true}; }

// In the order of OperationKind.
constexpr std::array<Definition, 20> kDefinitions{{
    {"identity", {}},
    {"brightness", {kFactor}},
    {"contrast", {kFactor}},
    {"saturation", {kFactor}},
    {"sharpness", {kFactor}},
    {"hue", {Parameter{"factor", -0.5F, 0.5F}}},
    {"grayscale", {}},
    {"gaussian_blur", {Parameter{"kernel_size", 1, kAny, true}, Parameter{"sigma", kPositive}}},
    {"posterize", {Parameter{"bits", 0, 8, true}}},
    {"solarize", {Parameter{"threshold", 0, 256}}},
    {"solarize_add", {Parameter{"addition", 0, 255, true}}},
    {"autocontrast", {}},
    {"equalize", {}},
    {"invert", {}},
    {"rotate", {Parameter{"degrees"}, kBilinear, kRed, kGreen, kBlue}},
    {"shear_x", {kTangent, kBilinear, kRed, kGreen, kBlue}},
    {"shear_y", {kTangent, kBilinear, kRed, kGreen, kBlue}},
    {"translate_x", {kPixels, kBilinear, kRed, kGreen, kBlue}},
    {"translate_y", {kPixels, kBilinear, kRed, kGreen, kBlue}},
    {"erase", {edge("top"), edge("left"), edge("height"), edge("width"), kRed, kGreen, kBlue}},
}};

// Six digits, or the nine that every float32 needs.
std::string shown(float value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%g", double{value});
  if (std::strtof(digits, nullptr) != value) {
    std::snprintf(digits, sizeof digits, "%.9g", double{value});
  }
  return digits;
}

std::string shown(int64_t value) { return std::to_string(value); }
std::string shown(const char* part) { return part; }
std::string shown(const std::string& part) { return part; }

template <typename... Parts>
std::string text(const Parts&... parts) {
  return (std::string() + ... + shown(parts));
}

std::string range_of(const Parameter& parameter) {
  const char* kind = parameter.whole ? "a whole number" : "a finite number";
  if (parameter.least == -kAny) return kind;
  if (parameter.least == kPositive) return text(kind, " greater than 0");
  if (parameter.most == kAny) return text(kind, ", at least ", parameter.least);
  return text(kind, " from ", parameter.least, " to ", parameter.most);
}

bool allowed(const Parameter& parameter, float value) {
  if (!std::isfinite(value) || value < parameter.least || value > parameter.most) return false;
  return !parameter.whole || value == std::floor(value);
}

// torch reflects the image at its edges once, so the kernel reaches less than the size past them.
std::string blur_problem(const float* parameters, int64_t size) {
  const double kernel = parameters[0];
  if (std::fmod(kernel, 2) == 1 && kernel <= 2 * static_cast<double>(size) - 1) return {};
  return text("gaussian_blur: kernel_size=", parameters[0], "; must be odd, from 1 to ",
              2 * size - 1, " for size=", size);
}

std::string erase_problem(const float* parameters, int64_t size) {
  static constexpr const char* kNames[] = {"top", "left", "height", "width"};
  for (const int i : {0, 1}) {
    if (double{parameters[i]} + parameters[i + 2] <= static_cast<double>(size)) continue;
    return text("erase: ", kNames[i], "=", parameters[i], ", ", kNames[i + 2], "=",
                parameters[i + 2], "; the sum must be at most size=", size);
  }
  return {};
}

bool changes_pixels(OperationKind kind, const float* parameters) {
  switch (kind) {
    case OperationKind::kIdentity:
      return false;
    case OperationKind::kBrightness:
    case OperationKind::kContrast:
    case OperationKind::kSaturation:
    case OperationKind::kSharpness:
    case OperationKind::kGaussianBlur:
      return parameters[0] != 1;
    case OperationKind::kPosterize:
      return parameters[0] != 8;
    case OperationKind::kSolarize:
      return parameters[0] <= 255;
    case OperationKind::kSolarizeAdd:
    case OperationKind::kHue:
    case OperationKind::kRotate:
    case OperationKind::kShearX:
    case OperationKind::kShearY:
    case OperationKind::kTranslateX:
    case OperationKind::kTranslateY:
      return parameters[0] != 0;
    case OperationKind::kErase:
      return parameters[2] > 0 && parameters[3] > 0;
    default:
      return true;
  }
}

}  // namespace

std::string operation_problem(const float* row, int64_t size) {
  constexpr auto kLast = static_cast<float>(kDefinitions.size() - 1);
  if (!allowed({"number", 0, kLast, true}, row[0])) {
    return text("unknown number ", row[0], "; must be a whole number from 0 to ", kLast);
  }
  const Definition& definition = kDefinitions[static_cast<size_t>(row[0])];
  for (size_t i = 0; i < definition.parameters.size(); ++i) {
    const Parameter& parameter = definition.parameters[i];
    const float value = row[i + 1];
    if (parameter.name == nullptr) {
      if (value == 0) continue;
      return text(definition.name, ": column ", static_cast<int64_t>(i + 1), " is ", value,
                  "; must be 0, because it is no parameter of this operation");
    }
    if (allowed(parameter, value)) continue;
    return text(definition.name, ": ", parameter.name, "=", value, "; must be ",
                range_of(parameter));
  }
  const auto kind = static_cast<OperationKind>(row[0]);
  if (kind == OperationKind::kGaussianBlur) return blur_problem(row + 1, size);
  if (kind == OperationKind::kErase) return erase_problem(row + 1, size);
  return {};
}

std::vector<Operation> read_operations(const float* rows, int64_t count) {
  std::vector<Operation> operations;
  for (const float* row = rows; count > 0; --count, row += kOperationColumns) {
    const auto kind = static_cast<OperationKind>(row[0]);
    if (changes_pixels(kind, row + 1)) operations.push_back({kind, row + 1});
  }
  return operations;
}

}  // namespace custom_op
