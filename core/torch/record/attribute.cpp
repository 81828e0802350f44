#include "core/torch/record/attribute.h"

#include <cstdio>
#include <string>
#include <utility>

#include "core/torch/bridge/dtype.h"

namespace backplane::record {

namespace {

const c10::Type& strip_optional(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::OptionalType)
    return *type.castRaw<c10::OptionalType>()->getElementType();
  return type;
}

// In an attribute the least of all integers stand for sizes that change.
Result<ir::Dim> number_attribute(std::int64_t number) {
  const ir::Dim dim(number);
  if (!dim.is_class()) return dim;
  return Status(Code::kUnsupported,
                "the number " + std::to_string(number) + ", for which graphs have no room");
}

Result<ir::AttributeValue> list_attribute(const c10::IValue& value) {
  if (value.isIntList()) {
    std::vector<ir::Dim> dims;
    for (const std::int64_t item : value.toIntVector()) {
      BP_ASSIGN_OR_RETURN(const ir::Dim dim, number_attribute(item));
      dims.push_back(dim);
    }
    return ir::AttributeValue(std::move(dims));
  }
  if (value.isDoubleList()) return ir::AttributeValue(value.toDoubleVector());
  // Empty lists of any kind are alike.
  const auto items = value.toListRef();
  if (items.empty()) return ir::AttributeValue(std::vector<ir::Dim>{});
  if (value.isBoolList()) {
    std::vector<bool> bools;
    for (const c10::IValue& item : items) bools.push_back(item.toBool());
    return ir::AttributeValue(std::move(bools));
  }
  std::vector<ir::Dim> dims;
  std::vector<double> reals;
  bool any_real = false, any_whole = false;
  for (const c10::IValue& item : items) {
    if (item.isInt()) {
      const std::int64_t number = item.toInt();
      any_whole = true;
      BP_ASSIGN_OR_RETURN(const ir::Dim dim, number_attribute(number));
      dims.push_back(dim);
      reals.push_back(static_cast<double>(number));
    } else if (item.isDouble()) {
      any_real = true;
      reals.push_back(item.toDouble());
    } else {
      return Status(Code::kUnsupported, "a list of " + item.tagKind());
    }
  }
  // What is multiplied by 2 keeps its dtype, by 2.0 it does not.
  if (any_real && any_whole) return Status(Code::kUnsupported, "a list of whole and other numbers");
  if (any_real) return ir::AttributeValue(std::move(reals));
  return ir::AttributeValue(std::move(dims));
}

Result<ir::AttributeValue> attribute_value(const c10::Type& type, const c10::IValue& value) {
  using ir::AttributeValue;
  if (value.isNone()) return AttributeValue(std::monostate{});
  switch (type.kind()) {
    case c10::TypeKind::ScalarTypeType: {
      const auto scalar_type = static_cast<c10::ScalarType>(value.toInt());
      const auto dtype = bridge::find_dtype(scalar_type);
      if (!dtype)
        return Status(Code::kUnsupported, std::string("dtype ") + c10::toString(scalar_type));
      return AttributeValue(*dtype);
    }
    case c10::TypeKind::MemoryFormatType:
      return AttributeValue("memory_format:" + std::to_string(value.toInt()));
    default:
      break;
  }
  if (value.isBool()) return AttributeValue(value.toBool());
  if (value.isInt()) {
    BP_ASSIGN_OR_RETURN(const ir::Dim dim, number_attribute(value.toInt()));
    return AttributeValue(dim);
  }
  if (value.isDouble()) return AttributeValue(value.toDouble());
  if (value.isString()) return AttributeValue(value.toStringRef());
  if (value.isComplexDouble()) {
    const c10::complex<double> c = value.toComplexDouble();
    char text[96];
    std::snprintf(text, sizeof text, "complex:%.17g,%.17g", c.real(), c.imag());
    return AttributeValue(std::string(text));
  }
  if (value.isList()) return list_attribute(value);
  return Status(Code::kUnsupported, "an argument of type " + value.tagKind());
}

}  // namespace

bool is_scalar(const c10::Argument& argument) {
  return strip_optional(*argument.real_type()).kind() == c10::TypeKind::NumberType;
}

bool is_default(const c10::Argument& argument, const c10::IValue& value) {
  if (!argument.default_value()) return argument.kwarg_only() && value.isNone();
  const c10::IValue& preset = *argument.default_value();
  if (preset.isNone() || value.isNone()) return preset.isNone() && value.isNone();
  return preset == value;
}

Status add_attribute(const c10::Argument& argument, const c10::IValue& value,
                     std::vector<ir::Attribute>& out_attributes) {
  const c10::Type& type = strip_optional(*argument.real_type());
  // Every value is a strided tensor in host memory; generators were refused when recorded.
  if (type.kind() == c10::TypeKind::DeviceObjType || type.kind() == c10::TypeKind::LayoutType ||
      type.kind() == c10::TypeKind::GeneratorType || argument.name() == "pin_memory")
    return {};
  Result<ir::AttributeValue> made = attribute_value(type, value);
  if (!made.ok()) return made.take_status();
  out_attributes.push_back({argument.name(), std::move(*made)});
  return {};
}

}  // namespace backplane::record
