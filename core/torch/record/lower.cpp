#include "core/torch/record/lower.h"

#include <ATen/native/TypeProperties.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "core/torch/bridge/dtype.h"
#include "core/torch/bridge/number.h"
#include "core/torch/record/attribute.h"
#include "core/torch/record/dead_calls.h"
#include "core/torch/record/dispatch.h"

namespace backplane::record {

namespace {

bool is_number(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

bool takes_offset(const std::string& name) { return name.starts_with("aten.as_strided"); }

class Lowering {
 public:
  Lowering(const Tape& tape, const LowerOptions& options)
      : tape_(tape), options_(options), ids_(tape.values.size(), ir::kNone) {}

  Result<Lowered> run() {
    out_.graph.name = options_.name;
    for (std::size_t i = 0; i < options_.inputs.size(); ++i) {
      const TapeValue& value = tape_.values[options_.inputs[i]];
      BP_ASSIGN_OR_RETURN(ir::TensorType type, lower_type(value.meta, value.device));
      ids_[options_.inputs[i]] = out_.graph.add_input(options_.input_names[i], std::move(type));
    }
    const std::vector<bool> live = find_live(tape_, options_.outputs);
    for (std::size_t i = 0; i < tape_.calls.size(); ++i) {
      if (i == options_.forward_call_count) out_.forward_node_count = out_.graph.nodes.size();
      if (!live[i]) continue;
      const Call& call = tape_.calls[i];
      if (Status status = add_call(call); !status.ok())
        return std::move(status).with_context("lowering a call of " + call.info->name);
    }
    if (options_.forward_call_count >= tape_.calls.size())
      out_.forward_node_count = out_.graph.nodes.size();
    for (const ValueNumber output : options_.outputs) {
      BP_ASSIGN_OR_RETURN(const ir::ValueId id, value_id(output));
      out_.graph.outputs.push_back(id);
    }
    out_.constants.resize(out_.graph.values.size());
    out_.ids = std::move(ids_);
    return std::move(out_);
  }

 private:
  Result<ir::ValueId> value_id(ValueNumber number) {
    if (number == kNoValue) return ir::kNone;
    if (ids_[number] != ir::kNone) return ids_[number];
    const TapeValue& value = tape_.values[number];
    if (value.origin != ValueOrigin::kConstant)
      return Status(Code::kInternal, "A recorded value is read before it is computed.");
    BP_ASSIGN_OR_RETURN(ids_[number], add_constant(value.constant, value.constant));
    return ids_[number];
  }

  Result<ir::ValueId> add_constant(const at::Tensor& data, const at::Tensor& original) {
    const BelowRecording below;
    const at::Tensor dense = data.cpu();
    BP_ASSIGN_OR_RETURN(ir::TensorType type, lower_type(dense, dense.device()));
    auto bytes = std::make_shared<ir::ConstantData>();
    bytes->bytes.resize(dense.nbytes());
    if (dense.nbytes() > 0)
      std::memcpy(bytes->bytes.data(), dense.const_data_ptr(), dense.nbytes());
    const ir::ValueId id = out_.graph.add_constant(is_number(original) ? "number" : "constant",
                                                   std::move(type), std::move(bytes));
    out_.constants.resize(out_.graph.values.size());
    out_.constants[id] = is_number(original) ? original : dense;
    return id;
  }

  bool is_number_constant(ValueNumber number) const {
    return tape_.values[number].origin == ValueOrigin::kConstant &&
           is_number(tape_.values[number].constant);
  }

  // The dtype of the tensors that numbers are beside: the last one's, of those with dimensions if
  // there are any.
  std::optional<at::ScalarType> tensor_type(const Call& call) const {
    std::optional<at::ScalarType> found;
    for (const ValueNumber operand : call.operands) {
      if (operand == kNoValue || is_number_constant(operand)) continue;
      const at::Tensor& meta = tape_.values[operand].meta;
      if (meta.dim() > 0) found = meta.scalar_type();
    }
    for (std::size_t i = call.operands.size(); !found && i-- > 0;)
      if (call.operands[i] != kNoValue && !is_number_constant(call.operands[i]))
        found = tape_.values[call.operands[i]].meta.scalar_type();
    return found;
  }

  std::optional<at::ScalarType> first_type(const Call& call) const {
    if (call.operands.empty() || call.operands[0] == kNoValue) return std::nullopt;
    return tape_.values[call.operands[0]].meta.scalar_type();
  }

  at::ScalarType result_type(const Call& call) const {
    for (const ValueNumber result : call.results)
      if (result != kNoValue) return tape_.values[result].meta.scalar_type();
    return at::kFloat;
  }

  // What PyTorch computes an operator in that promotes its operands.
  at::ScalarType common_type(const Call& call) const {
    at::native::ResultTypeState state;
    for (const ValueNumber operand : call.operands)
      if (operand != kNoValue)
        state = at::native::update_result_type_state(tape_.values[operand].meta, state);
    return at::native::result_type(state);
  }

  // The type that PyTorch converts a tensor without dimensions to before it computes, where that is
  // the type of elements beside it and holds less than its own.
  std::optional<at::ScalarType> narrowed_type(const Call& call, const c10::Argument& argument,
                                              ValueNumber number) const {
    const at::Tensor& meta = tape_.values[number].meta;
    const std::string& name = call.info->name;
    const bool is_member = name.starts_with("aten.isin");
    if (meta.dim() != 0 || (call.info->op->op_class != ir::OpClass::kPointwise && !is_member))
      return std::nullopt;
    if (is_number(meta)) return rounded_type(call, argument, number, tensor_type(call));
    if ((!call.info->is_pointwise && !is_member) || name.starts_with("aten.masked_fill") ||
        name.starts_with("aten.fill") || name.starts_with("aten.copy"))
      return std::nullopt;
    const at::ScalarType common = common_type(call);
    // What makes floats of whole numbers takes each as it is.
    if (c10::isIntegralType(common, /*includeBool=*/true) && c10::isFloatingType(result_type(call)))
      return std::nullopt;
    if (c10::isReducedFloatingType(common)) return rounded_type(call, argument, number, common);
    if (c10::promoteTypes(meta.scalar_type(), common) == common) return std::nullopt;
    return common;
  }

  // Short floats take some numbers as they are.
  std::optional<at::ScalarType> rounded_type(const Call& call, const c10::Argument& argument,
                                             ValueNumber number,
                                             std::optional<at::ScalarType> beside) const {
    const at::Tensor& meta = tape_.values[number].meta;
    const bool is_rounded =
        beside && c10::isReducedFloatingType(*beside) && !c10::isComplexType(meta.scalar_type()) &&
        meta.scalar_type() != *beside && bridge::is_rounded(call.info->name, argument.name()) &&
        std::ranges::all_of(call.operands, [&](ValueNumber operand) {
          if (operand == kNoValue) return true;
          const at::Tensor& other = tape_.values[operand].meta;
          return other.dim() == 0 || other.scalar_type() == *beside;
        });
    return is_rounded ? beside : std::nullopt;
  }

  // PyTorch refuses to fill whole numbers with what is none of theirs, and floats with what is too
  // large for them.
  bool may_not_fit(const Call& call, const c10::Argument& argument, ValueNumber number) const {
    if (!call.info->name.starts_with("aten.masked_fill") || argument.name() != "value")
      return false;
    const at::ScalarType filled = *first_type(call),
                         value = tape_.values[number].meta.scalar_type();
    if (c10::isFloatingType(filled) && c10::isFloatingType(value))
      return c10::elementSize(value) > c10::elementSize(filled);
    return c10::isIntegralType(filled, /*includeBool=*/false) &&
           c10::promoteTypes(value, filled) != filled;
  }

  Result<ir::ValueId> converted_id(ir::ValueId id, at::ScalarType to) {
    ir::TensorType type = out_.graph.values[id].type;
    type.dtype = *bridge::find_dtype(to);
    std::vector<ir::Attribute> attributes{{"dtype", type.dtype}};
    const ir::NodeId node = out_.graph.add_node(
        ir::find_op("aten._to_copy"), {id}, std::move(attributes), {std::move(type)}, "narrowed");
    return out_.graph.nodes[node].results[0];
  }

  // A number is a constant of its own for each reader, with a dtype that suits the reader.
  Result<ir::ValueId> operand_id(const Call& call, const c10::Argument& argument,
                                 ValueNumber number, std::string& out_host_reason) {
    if (number == kNoValue) return ir::kNone;
    if (!is_number_constant(number)) {
      BP_ASSIGN_OR_RETURN(const ir::ValueId id, value_id(number));
      if (may_not_fit(call, argument, number))
        out_host_reason = "whether the value fits is for PyTorch to say";
      const std::optional<at::ScalarType> to = narrowed_type(call, argument, number);
      return to ? converted_id(id, *to) : id;
    }
    const at::Tensor& constant = tape_.values[number].constant;
    const BelowRecording below;
    bridge::NumberOperand operand = bridge::number_operand(
        call.info->name, argument.name(), constant.item(), tensor_type(call), result_type(call));
    if (!operand.host_reason.empty()) out_host_reason = std::move(operand.host_reason);
    return add_constant(constant.to(operand.dtype), constant);
  }

  Status add_call(const Call& call) {
    const c10::FunctionSchema& schema = call.info->handle.schema();
    if (call.info->list_count > 1)
      return Status(Code::kUnsupported, call.info->name + " takes several tensor lists");
    std::vector<ir::ValueId> operands;
    operands.reserve(call.operands.size());
    std::vector<ir::Attribute> attributes;
    std::string host_reason;
    std::uint32_t list_first = 0;
    std::size_t next = 0;
    const std::size_t given = explicit_positional_count(call);
    for (std::size_t i = 0; i < call.arguments.size(); ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      std::uint32_t count = 1;
      switch (call.info->arguments[i]) {
        case ArgumentKind::kPlain:
          if (argument.kwarg_only() ? is_default(argument, call.arguments[i]) : i >= given)
            continue;
          if (is_scalar(argument) && call.arguments[i].isScalar()) {
            const at::Scalar number = call.arguments[i].toScalar();
            const at::Scalar rounded =
                bridge::rounded_number(call.info->name, argument.name(), number, first_type(call));
            BP_RETURN_IF_ERROR(add_attribute(argument, rounded, attributes));
            if (std::string misfit =
                    bridge::attribute_misfit(number, first_type(call), result_type(call));
                !misfit.empty())
              host_reason = std::move(misfit);
          } else {
            BP_RETURN_IF_ERROR(add_attribute(argument, call.arguments[i], attributes));
          }
          continue;
        case ArgumentKind::kTensor:
          break;
        case ArgumentKind::kTensorList:
        case ArgumentKind::kOptionalTensorList:
          list_first = static_cast<std::uint32_t>(operands.size());
          count = call.list_counts[0];
          break;
      }
      for (; count > 0; --count) {
        BP_ASSIGN_OR_RETURN(const ir::ValueId id,
                            operand_id(call, argument, call.operands[next++], host_reason));
        operands.push_back(id);
      }
    }
    // PyTorch gives it the shape of what is added.
    if (call.info->name == "aten.addmv" && tape_.values[call.operands[1]].meta.numel() == 0)
      host_reason = "a product of a matrix without elements";
    if (takes_offset(call.info->name)) BP_RETURN_IF_ERROR(make_offset_relative(call, attributes));

    std::vector<ir::TensorType> types;
    types.reserve(call.results.size());
    for (const ValueNumber result : call.results) {
      if (result == kNoValue) {
        types.emplace_back();  // a place-holder: nobody reads it
        continue;
      }
      const TapeValue& value = tape_.values[result];
      BP_ASSIGN_OR_RETURN(ir::TensorType type, lower_type(value.meta, value.device));
      types.push_back(std::move(type));
    }
    const ir::NodeId id =
        out_.graph.add_node(call.info->op, std::move(operands), std::move(attributes),
                            std::move(types), value_name(*call.info));
    ir::Node& node = out_.graph.nodes[id];
    node.list_first = list_first;
    node.host_reason = std::move(host_reason);
    if (call.location) node.location = *call.location;
    node.list_count = call.list_counts.empty() ? 0 : call.list_counts[0];
    for (std::size_t i = 0; i < call.results.size(); ++i)
      if (call.results[i] != kNoValue) ids_[call.results[i]] = node.results[i];
    return {};
  }

  // PyTorch's own tracer leaves out the defaults at the end of the positional arguments.
  static std::size_t explicit_positional_count(const Call& call) {
    const auto& arguments = call.info->handle.schema().arguments();
    std::size_t count = arguments.size();
    while (count > 0) {
      const c10::Argument& last = arguments[count - 1];
      if (!last.kwarg_only() && (call.info->arguments[count - 1] != ArgumentKind::kPlain ||
                                 !is_default(last, call.arguments[count - 1])))
        break;
      --count;
    }
    return count;
  }

  // Values carry no storage offset: the attribute counts from operand 0's own start. An input's
  // memory before and behind what it shows is not the graph's.
  Status make_offset_relative(const Call& call, std::vector<ir::Attribute>& attributes) const {
    const at::Tensor& operand = tape_.values[call.operands[0]].meta;
    const std::int64_t start = operand.storage_offset();
    std::int64_t absolute = start;
    for (ir::Attribute& a : attributes) {
      if (a.name != "storage_offset") continue;
      if (const auto* dim = std::get_if<ir::Dim>(&a.value)) absolute = dim->number();
      a.value = ir::Dim(absolute - start);
    }
    if (absolute == start) return {};
    for (const ValueNumber input : options_.inputs) {
      const at::Tensor& root = tape_.values[input].meta;
      if (root.storage().is_alias_of(operand.storage()) && absolute < root.storage_offset())
        return Status(Code::kUnsupported, call.info->name + " reads in front of an argument");
    }
    return {};
  }

  static std::string value_name(const OperatorInfo& info) {
    const std::size_t colons = info.schema_name.find("::");
    return info.schema_name.substr(colons == std::string::npos ? 0 : colons + 2);
  }

  const Tape& tape_;
  const LowerOptions& options_;
  std::vector<ir::ValueId> ids_;
  Lowered out_;
};

}  // namespace

Result<ir::TensorType> lower_type(const at::Tensor& meta, c10::Device device) {
  if (meta.layout() != at::kStrided) return Status(Code::kUnsupported, "a sparse or opaque tensor");
  if (device.is_meta()) return Status(Code::kUnsupported, "a tensor on device 'meta'");
  const auto dtype = bridge::find_dtype(meta.scalar_type());
  if (!dtype)
    return Status(Code::kUnsupported, std::string("dtype ") + c10::toString(meta.scalar_type()));
  if (meta.is_conj() || meta.is_neg())
    return Status(Code::kUnsupported, "a tensor with a pending conjugation or negation");
  ir::TensorType type;
  type.dtype = *dtype;
  type.dims.assign(meta.sizes().begin(), meta.sizes().end());
  type.strides.assign(meta.strides().begin(), meta.strides().end());
  return type;
}

Result<Lowered> lower(const Tape& tape, const LowerOptions& options) {
  return Lowering(tape, options).run();
}

}  // namespace backplane::record
