#include "core/torch/bridge/aten_node.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstdio>

#include "core/ir/view.h"
#include "core/torch/bridge/dtype.h"

namespace backplane::bridge {

namespace {

Status unsupported(const ir::Node& node, const std::string& what) {
  return Status(Code::kUnsupported, std::string(node.op->name) + ": " + what);
}

bool is_tensor(const c10::Type& type) { return type.kind() == c10::TypeKind::TensorType; }

// Scalar, float and bool arguments; integers with dim classes are resolved per call.
struct ToIValue {
  const c10::Type& type;

  std::optional<c10::IValue> operator()(std::monostate) const { return c10::IValue(); }
  std::optional<c10::IValue> operator()(bool value) const {
    if (type.kind() == c10::TypeKind::FloatType) return c10::IValue(value ? 1.0 : 0.0);
    return c10::IValue(value);
  }
  std::optional<c10::IValue> operator()(ir::Dim value) const {
    if (value.is_class()) return std::nullopt;
    if (type.kind() == c10::TypeKind::FloatType)
      return c10::IValue(static_cast<double>(value.number()));
    return c10::IValue(value.number());
  }
  std::optional<c10::IValue> operator()(double value) const { return c10::IValue(value); }
  std::optional<c10::IValue> operator()(ir::DType value) const {
    return c10::IValue(static_cast<std::int64_t>(to_scalar_type(value)));
  }
  // Texts that are not strings to ATen carry a prefix: device:cpu, memory_format:2, complex:1,2.
  std::optional<c10::IValue> operator()(const std::string& value) const {
    const auto after = [&](std::string_view prefix) -> std::optional<std::string> {
      if (value.compare(0, prefix.size(), prefix) != 0) return std::nullopt;
      return value.substr(prefix.size());
    };
    if (auto text = after("device:")) return c10::IValue(c10::Device(*text));
    if (auto text = after("layout:"))
      return c10::IValue(static_cast<std::int64_t>(std::stoi(*text)));
    if (auto text = after("memory_format:"))
      return c10::IValue(static_cast<std::int64_t>(std::stoi(*text)));
    if (auto text = after("complex:")) {
      const std::size_t comma = text->find(',');
      return c10::IValue(c10::complex<double>(std::stod(text->substr(0, comma)),
                                              std::stod(text->substr(comma + 1))));
    }
    return c10::IValue(value);
  }
  std::optional<c10::IValue> operator()(const std::vector<ir::Dim>& value) const {
    std::vector<std::int64_t> numbers;
    for (const ir::Dim d : value) {
      if (d.is_class()) return std::nullopt;
      numbers.push_back(d.number());
    }
    if (type.kind() == c10::TypeKind::ListType &&
        type.castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::FloatType)
      return c10::IValue(std::vector<double>(numbers.begin(), numbers.end()));
    if (is_scalar_list()) return scalars(numbers);
    return c10::IValue(numbers);
  }
  std::optional<c10::IValue> operator()(const std::vector<double>& value) const {
    if (is_scalar_list()) return scalars(value);
    return c10::IValue(value);
  }
  std::optional<c10::IValue> operator()(const std::vector<bool>& value) const {
    if (is_scalar_list()) return scalars(value);
    c10::List<bool> list;
    for (const bool b : value) list.push_back(b);
    return c10::IValue(list);
  }

 private:
  // Scalar[], whose numbers may be of any type.
  bool is_scalar_list() const {
    return type.kind() == c10::TypeKind::ListType &&
           type.castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::NumberType;
  }
  template <class Number>
  static c10::IValue scalars(const std::vector<Number>& numbers) {
    c10::List<at::Scalar> list;
    for (const Number number : numbers) list.push_back(at::Scalar(number));
    return c10::IValue(std::move(list));
  }
};

const c10::Type& strip_optional(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::OptionalType)
    return *type.castRaw<c10::OptionalType>()->getElementType();
  return type;
}

// The overload that takes a generator as well: rand_like, rand_like.generator;
// randint_like.low_dtype, randint_like.low_generator_dtype. Null where there is none, or no need of
// one.
std::optional<c10::OperatorHandle> find_with_generator(const c10::OperatorHandle& op) {
  const auto is_generator = [](const c10::Argument& a) { return a.name() == "generator"; };
  if (!op.hasTag(at::Tag::nondeterministic_seeded) ||
      std::ranges::any_of(op.schema().arguments(), is_generator))
    return std::nullopt;
  std::string overload = op.schema().overload_name();
  if (overload.empty())
    overload = "generator";
  else
    overload.insert(std::min(overload.find('_'), overload.size()), "_generator");
  return c10::Dispatcher::singleton().findSchema({op.schema().name(), overload});
}

}  // namespace

Result<AtenNode> AtenNode::prepare(const ir::Node& node, const at::Generator& generator) {
  // "aten.add.Tensor" is operator aten::add, overload Tensor.
  const std::string_view name = node.op->name;
  const std::size_t first = name.find('.');
  if (first == std::string_view::npos) return unsupported(node, "not an operator name");
  const std::size_t second = name.find('.', first + 1);
  const std::string op = std::string(name.substr(0, first)) +
                         "::" + std::string(name.substr(first + 1, second - first - 1));
  const std::string overload =
      second == std::string_view::npos ? "" : std::string(name.substr(second + 1));
  auto handle = c10::Dispatcher::singleton().findSchema({op, overload});
  if (!handle) return unsupported(node, "this build of torch has no such operator");
  if (generator.defined())
    if (const auto with_generator = find_with_generator(*handle)) handle = with_generator;

  AtenNode made(*handle);
  made.result_count_ = node.results.size();
  std::uint32_t operand = 0;
  for (const c10::Argument& in : handle->schema().arguments()) {
    Argument out;
    const c10::Type& type = *in.real_type();
    const c10::Type& inner = strip_optional(type);
    if (is_tensor(inner)) {
      out.kind = &inner == &type ? ArgumentKind::kTensor : ArgumentKind::kOptionalTensor;
      out.first = operand;
      out.count = 1;
      operand += 1;
    } else if (inner.kind() == c10::TypeKind::ListType &&
               is_tensor(strip_optional(*inner.castRaw<c10::ListType>()->getElementType()))) {
      const c10::Type& element = *inner.castRaw<c10::ListType>()->getElementType();
      out.kind = is_tensor(element) ? ArgumentKind::kTensorList : ArgumentKind::kOptionalTensorList;
      out.first = operand;
      out.count = node.list_count;
      operand += node.list_count;
    } else if (generator.defined() && in.name() == "generator") {
      out.constant = generator;
    } else if (const ir::Attribute* a = node.find_attribute(in.name())) {
      if (auto value = std::visit(ToIValue{inner}, a->value)) {
        out.constant = std::move(*value);
      } else if (const auto* dim = std::get_if<ir::Dim>(&a->value)) {
        out.kind = ArgumentKind::kInt;
        out.dims = {*dim};
      } else {
        out.kind = ArgumentKind::kIntList;
        out.dims = std::get<std::vector<ir::Dim>>(a->value);
      }
    } else if (in.default_value()) {
      out.constant = *in.default_value();
    } else if (&inner != &type) {
      out.constant = c10::IValue();
    } else {
      return unsupported(node, "argument '" + in.name() + "' is missing");
    }
    if (in.name() == "storage_offset" && op.starts_with("aten::as_strided"))
      made.offset_argument_ = made.arguments_.size();
    made.arguments_.push_back(std::move(out));
  }
  return made;
}

std::vector<at::Tensor> AtenNode::run(std::span<const at::Tensor> operands,
                                      std::span<const std::int64_t> class_values) const {
  const at::AutoDispatchBelowADInplaceOrView guard;
  // A graph says where it casts, and may run before the frame leaves autocast.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  torch::jit::Stack stack;
  stack.reserve(arguments_.size());
  for (const Argument& a : arguments_) {
    switch (a.kind) {
      case ArgumentKind::kConstant:
        stack.push_back(a.constant);
        break;
      case ArgumentKind::kTensor:
        stack.emplace_back(operands[a.first]);
        break;
      case ArgumentKind::kOptionalTensor:
        stack.push_back(a.first < operands.size() && operands[a.first].defined()
                            ? c10::IValue(operands[a.first])
                            : c10::IValue());
        break;
      case ArgumentKind::kTensorList: {
        c10::List<at::Tensor> list;
        for (std::uint32_t i = 0; i < a.count; ++i) list.push_back(operands[a.first + i]);
        stack.emplace_back(std::move(list));
        break;
      }
      case ArgumentKind::kOptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        for (std::uint32_t i = 0; i < a.count; ++i) {
          const at::Tensor& t = operands[a.first + i];
          list.push_back(t.defined() ? std::optional<at::Tensor>(t) : std::nullopt);
        }
        stack.emplace_back(std::move(list));
        break;
      }
      case ArgumentKind::kInt:
        stack.emplace_back(ir::resolve(a.dims[0], class_values));
        break;
      case ArgumentKind::kIntList:
        stack.emplace_back(ir::resolve(a.dims, class_values));
        break;
    }
  }
  if (offset_argument_ && stack[*offset_argument_].isInt())
    stack[*offset_argument_] = stack[*offset_argument_].toInt() + operands[0].storage_offset();
  op_.get().callBoxed(stack);
  std::vector<at::Tensor> results;
  // Values of a graph are what their memory holds: no conjugation or negation stays pending.
  const auto add = [&](const at::Tensor& tensor) {
    const bool is_pending = tensor.defined() && (tensor.is_conj() || tensor.is_neg());
    results.push_back(is_pending ? tensor.resolve_conj().resolve_neg() : tensor);
  };
  for (c10::IValue& value : stack) {
    if (value.isTensor()) {
      add(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) add(t);
    } else {
      results.emplace_back();
    }
  }
  results.resize(result_count_);
  return results;
}

}  // namespace backplane::bridge
