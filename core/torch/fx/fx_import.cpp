#include "core/torch/fx/fx_import.h"

#include <ATen/ATen.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "core/ir/view.h"
#include "core/torch/bridge/dtype.h"
#include "core/torch/bridge/number.h"
#include "core/torch/fx/sym_expression.h"

namespace py = pybind11;

namespace backplane::fx {

namespace {

Status unsupported(const std::string& what) { return Status(Code::kUnsupported, what); }

// Compilation runs under PyTorch's fake mode; constants are real memory and must not meet it.
class RealTensors {
 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

class Importer {
 public:
  Importer(const std::string& name, const std::vector<std::string>& static_inputs)
      : static_inputs_(static_inputs.begin(), static_inputs.end()) {
    out_.graph.name = name;
    const py::module_ torch = py::module_::import("torch");
    sym_int_ = torch.attr("SymInt");
    sym_float_ = torch.attr("SymFloat");
    sym_bool_ = torch.attr("SymBool");
    dtype_ = torch.attr("dtype");
    device_ = torch.attr("device");
    memory_format_ = torch.attr("memory_format");
    layout_ = torch.attr("layout");
    op_overload_ = py::module_::import("torch._ops").attr("OpOverload");
    fx_node_ = py::module_::import("torch.fx").attr("Node");
    getitem_ = py::module_::import("operator").attr("getitem");
  }

  Result<Imported> run(const py::object& module) {
    module_ = module;
    // A list of its own: FX's node iterator is no Python iterator that pybind11 can end.
    const py::list nodes(module.attr("graph").attr("nodes"));
    for (const py::handle node : nodes) {
      const std::string kind = py::str(node.attr("op"));
      Status status;
      if (kind == "placeholder")
        status = placeholder(node);
      else if (kind == "get_attr")
        status = constant(node);
      else if (kind == "call_function")
        status = call(node);
      else if (kind == "output")
        status = output(node);
      else
        status = unsupported("an FX node of kind '" + kind + "'");
      if (!status.ok())
        return std::move(status).with_context("importing FX node " +
                                              std::string(py::str(node.attr("name"))));
    }
    return std::move(out_);
  }

 private:
  // ---- Sizes

  // The dim of an expression: its number, or the class that stands for it.
  Result<ir::Dim> dim_of_expression(const py::handle& expression, const py::object& hint,
                                    bool is_argument = false) {
    if (py::bool_(expression.attr("is_Integer")))
      return ir::Dim(std::int64_t{std::stoll(std::string(py::str(expression)))});
    BP_ASSIGN_OR_RETURN(std::string text, print_sympy(expression));
    if (const auto found = classes_.find(text); found != classes_.end())
      return ir::Dim::dim_class(found->second);
    // Symbols of an expression get classes of their own first.
    const bool symbol = py::bool_(expression.attr("is_Symbol"));
    if (!symbol && !is_argument)
      for (const py::handle s : expression.attr("free_symbols")) {
        const auto made = dim_of_expression(s, py::none());
        if (!made.ok()) return made.status();
      }
    ir::DimClass added;
    added.name = symbol ? text : "d" + std::to_string(out_.graph.dim_classes.size());
    if (!symbol) added.expression = text;
    added.min = 0;
    if (!hint.is_none()) added.hint = hint.cast<std::int64_t>();
    const auto index = static_cast<std::uint32_t>(out_.graph.dim_classes.size());
    out_.graph.dim_classes.push_back(std::move(added));
    classes_[text] = index;
    return ir::Dim::dim_class(index);
  }

  Result<ir::Dim> dim_of(const py::handle& value, bool is_argument = false) {
    if (!py::isinstance(value, sym_int_)) return ir::Dim(value.cast<std::int64_t>());
    const py::object node = value.attr("node");
    py::object hint = py::none();
    if (py::hasattr(node, "hint")) hint = node.attr("hint");
    if (!py::isinstance<py::int_>(hint)) hint = py::none();
    BP_ASSIGN_OR_RETURN(const ir::Dim dim, dim_of_expression(node.attr("expr"), hint, is_argument));
    if (dim.is_class() && !hint.is_none())
      out_.graph.dim_classes[dim.class_index()].hint = hint.cast<std::int64_t>();
    return dim;
  }

  // Of all tensors of a graph, those that are not on the host are on one device.
  Status see_device(c10::Device device) {
    if (device.is_cpu()) return {};
    if (device.type() != c10::DeviceType::PrivateUse1)
      return unsupported("a tensor on device '" + device.str() + "'");
    if (!device.has_index()) return {};
    if (!out_.device_index) out_.device_index = device.index();
    if (*out_.device_index == device.index()) return {};
    return unsupported("tensors of two devices, '" + device.str() + "' and another");
  }
  static bool is_on_device(const py::handle& value) {
    return THPVariable_Check(value.ptr()) && !THPVariable_Unpack(value.ptr()).device().is_cpu();
  }

  Result<ir::TensorType> type_of(const py::handle& value) {
    if (!THPVariable_Check(value.ptr()))
      return unsupported("a value of type " + std::string(py::str(py::type::of(value))));
    const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
    if (tensor.layout() != at::kStrided) return unsupported("a sparse or opaque tensor");
    BP_RETURN_IF_ERROR(see_device(tensor.device()));
    const auto dtype = bridge::find_dtype(tensor.scalar_type());
    if (!dtype) return unsupported(std::string("dtype ") + c10::toString(tensor.scalar_type()));
    if (tensor.is_conj() || tensor.is_neg())
      return unsupported("a tensor with a pending conjugation or negation");
    ir::TensorType type;
    type.dtype = *dtype;
    const auto rank = static_cast<std::size_t>(tensor.dim());
    const c10::SymIntArrayRef sizes = tensor.sym_sizes(), strides = tensor.sym_strides();
    bool plain = true;
    for (std::size_t i = 0; i < rank; ++i) {
      const auto size = sizes[i].maybe_as_int(), stride = strides[i].maybe_as_int();
      plain = plain && size && stride;
      if (!plain) break;
      type.dims.emplace_back(*size);
      type.strides.emplace_back(*stride);
    }
    if (plain) return type;
    type.dims.clear();
    type.strides.clear();
    for (const py::handle size : value.attr("shape")) {
      BP_ASSIGN_OR_RETURN(const ir::Dim dim, dim_of(size));
      type.dims.push_back(dim);
    }
    for (const py::handle stride : value.attr("stride")()) {
      BP_ASSIGN_OR_RETURN(const ir::Dim dim, dim_of(stride));
      type.strides.push_back(dim);
    }
    return type;
  }

  // ---- Nodes

  static py::object meta_value(const py::handle& node) {
    const py::dict meta = node.attr("meta");
    return meta.contains("val") ? py::object(meta["val"]) : py::none();
  }

  Status placeholder(const py::handle& node) {
    const std::string name = py::str(node.attr("name"));
    const py::object value = meta_value(node);
    Argument argument;
    if (py::isinstance(value, sym_int_)) {
      // An expression may come without its symbols: the argument itself is what binds the class.
      BP_ASSIGN_OR_RETURN(const ir::Dim dim, dim_of(value, /*is_argument=*/true));
      argument.kind = Argument::Kind::kIgnored;
      if (dim.is_class()) {
        argument.kind = Argument::Kind::kInteger;
        argument.index = static_cast<std::uint32_t>(out_.integer_arguments.size());
        out_.integer_arguments.push_back(out_.graph.dim_classes[dim.class_index()].name);
        out_.graph.dim_classes[dim.class_index()].expression.clear();
      }
      dims_.emplace(node.ptr(), dim);
    } else if (value.is_none() || py::isinstance<py::int_>(value) ||
               py::isinstance<py::float_>(value)) {
      argument.kind = Argument::Kind::kIgnored;
    } else {
      BP_ASSIGN_OR_RETURN(ir::TensorType type, type_of(value));
      argument.index = static_cast<std::uint32_t>(out_.graph.inputs.size());
      const ir::ValueId id = out_.graph.add_input(name, std::move(type));
      out_.graph.values[id].is_static = static_inputs_.contains(name);
      out_.inputs_on_device.push_back(is_on_device(value));
      values_.emplace(node.ptr(), std::vector<ir::ValueId>{id});
    }
    out_.arguments.push_back(argument);
    return {};
  }

  Status constant(const py::handle& node) {
    py::object value = module_;
    const std::string target = py::str(node.attr("target"));
    for (std::size_t from = 0; from <= target.size();) {
      const std::size_t dot = std::min(target.find('.', from), target.size());
      value = value.attr(target.substr(from, dot - from).c_str());
      from = dot + 1;
    }
    if (!THPVariable_Check(value.ptr()))
      return unsupported("the constant '" + target + "' is no tensor");
    const RealTensors real;
    const at::Tensor tensor = THPVariable_Unpack(value.ptr()).detach().cpu().contiguous();
    constexpr c10::DispatchKeySet kWithoutMemory{
        c10::DispatchKey::Python, c10::DispatchKey::Functionalize, c10::DispatchKey::ZeroTensor};
    if (tensor.key_set().has_any(kWithoutMemory))
      return Status(Code::kEagerOnly, "the constant '" + target + "' has no memory");
    BP_ASSIGN_OR_RETURN(const ir::ValueId id, add_constant(py::str(node.attr("name")), tensor));
    values_.emplace(node.ptr(), std::vector<ir::ValueId>{id});
    return {};
  }

  Status call(const py::handle& node) {
    const py::object target = node.attr("target");
    const py::object value = meta_value(node);
    // Arithmetic on sizes: the class of its value says it all.
    if (py::isinstance(value, sym_int_) || py::isinstance<py::int_>(value)) {
      BP_ASSIGN_OR_RETURN(const ir::Dim dim, dim_of(value));
      dims_.emplace(node.ptr(), dim);
      return {};
    }
    if (py::isinstance(value, sym_float_) || py::isinstance(value, sym_bool_))
      return unsupported("a float or bool computed from sizes");
    if (target.is(getitem_)) {
      const py::tuple args = node.attr("args");
      const auto source = values_.find(args[0].ptr());
      const auto index = args[1].cast<std::size_t>();
      if (source == values_.end() || index >= source->second.size())
        return unsupported("getitem of a value that is no result list");
      const ir::ValueId id = source->second[index];
      values_.emplace(node.ptr(), std::vector<ir::ValueId>{id});
      return {};
    }
    if (!py::isinstance(target, op_overload_))
      return unsupported("a call of " + std::string(py::str(target)) +
                         ", which is no ATen operator");
    return call_operator(node, target, value);
  }

  Status call_operator(const py::handle& node, const py::object& target, const py::object& value) {
    const py::object schema = target.attr("_schema");
    if (py::bool_(schema.attr("is_mutable")))
      return unsupported("the mutating operator " + std::string(py::str(target)));
    std::string name = py::str(target);  // "aten.add.Tensor", "aten.relu.default"
    if (const std::string suffix = ".default";
        name.size() > suffix.size() && name.ends_with(suffix))
      name.erase(name.size() - suffix.size());
    if (name == "prims.convert_element_type")
      name = "aten._to_copy";                             // same arguments, same meaning
    if (name == "aten.detach" || name == "aten.alias") {  // another name of the same value
      const py::tuple args = node.attr("args");
      BP_ASSIGN_OR_RETURN(const ir::ValueId same, operand(args[0]));
      values_.emplace(node.ptr(), std::vector<ir::ValueId>{same});
      return {};
    }

    std::vector<ir::ValueId> operands;
    std::vector<ir::Attribute> attributes;
    std::uint32_t list_first = 0, list_count = 0;
    bool has_list = false;
    std::string host_reason;
    const py::tuple args = node.attr("args");
    const py::dict kwargs = node.attr("kwargs");
    std::size_t position = 0;
    for (const py::handle argument : schema.attr("arguments")) {
      const std::string argument_name = py::str(argument.attr("name"));
      const std::string type = py::str(argument.attr("type"));
      py::object given;
      bool has = false;
      if (!py::bool_(argument.attr("kwarg_only")) && position < args.size()) {
        given = args[position++];
        has = true;
      } else if (kwargs.contains(argument_name.c_str())) {
        given = kwargs[argument_name.c_str()];
        has = true;
      }
      if (type == "Tensor" || type == "Optional[Tensor]") {
        if (has && dims_.contains(given.ptr()) && name.ends_with(".Tensor") &&
            operands.size() == 1) {
          // A size as a tensor operand: the overload that takes a number.
          name.replace(name.size() - 6, 6, "Scalar");
          attributes.push_back({argument_name, dims_.at(given.ptr())});
          continue;
        }
        BP_ASSIGN_OR_RETURN(
            const ir::ValueId id,
            has ? tensor_operand(given, name, argument_name, args, result_type(value), host_reason)
                : Result<ir::ValueId>(ir::kNone));
        operands.push_back(id);
      } else if (type == "List[Tensor]" || type == "List[Optional[Tensor]]" ||
                 type == "Optional[List[Tensor]]") {
        if (has_list) return unsupported(name + " takes several tensor lists");
        has_list = true;
        list_first = static_cast<std::uint32_t>(operands.size());
        if (has && !given.is_none())
          for (const py::handle item : given) {
            BP_ASSIGN_OR_RETURN(const ir::ValueId id, operand(item));
            operands.push_back(id);
          }
        list_count = static_cast<std::uint32_t>(operands.size()) - list_first;
      } else if (has) {
        if (type == "Optional[Generator]" || type == "Generator") {
          if (!given.is_none()) return unsupported(name + " with a generator of its own");
          continue;
        }
        const bool is_scalar = type.find("number") != std::string::npos;
        const std::optional<at::Scalar> number = is_scalar ? to_number(given) : std::nullopt;
        BP_ASSIGN_OR_RETURN(ir::AttributeValue attribute, attribute_of(given));
        if (number && (number->isFloatingPoint() || number->isIntegral(/*includeBool=*/false)))
          attribute = real_attribute(
              bridge::rounded_number(name, argument_name, *number, first_type(args)));
        // Every value is a strided tensor in host memory: nothing to say.
        if (type.find("Device") != std::string::npos || type.find("Layout") != std::string::npos ||
            argument_name == "device" || argument_name == "layout" || argument_name == "pin_memory")
          continue;
        attributes.push_back({argument_name, std::move(attribute)});
        if (number)
          if (std::string misfit =
                  bridge::attribute_misfit(*number, first_type(args), result_type(value));
              !misfit.empty())
            host_reason = std::move(misfit);
      }
    }

    if (name.starts_with("aten._embedding_bag"))
      for (const ir::Attribute& a : attributes)
        if (const bool* set = std::get_if<bool>(&a.value);
            a.name == "include_last_offset" && set != nullptr && *set)
          return unsupported(name + " with its last offset, recorded in a wrong shape by PyTorch");

    std::vector<ir::TensorType> types;
    std::vector<bool> present;
    if (THPVariable_Check(value.ptr())) {
      BP_ASSIGN_OR_RETURN(ir::TensorType type, type_of(value));
      types.push_back(std::move(type));
      present.push_back(true);
    } else if (py::isinstance<py::tuple>(value) || py::isinstance<py::list>(value)) {
      for (const py::handle item : value) {
        present.push_back(THPVariable_Check(item.ptr()) != 0);
        if (present.back()) {
          BP_ASSIGN_OR_RETURN(ir::TensorType type, type_of(item));
          types.push_back(std::move(type));
        } else if (item.is_none() || py::isinstance<py::int_>(item)) {
          types.emplace_back();  // a place-holder: nobody reads it
        } else {
          return unsupported(name + " has a result that is no tensor");
        }
      }
    } else {
      return unsupported(name + " has no recorded result");
    }
    if (name.starts_with("aten.as_strided"))
      BP_RETURN_IF_ERROR(make_offset_relative(name, args, operands[0], attributes));
    widen_statistics(name, operands, types);
    const ir::NodeId id =
        out_.graph.add_node(ir::find_or_intern_op(name), std::move(operands), std::move(attributes),
                            std::move(types), std::string(py::str(node.attr("name"))));
    ir::Node& made = out_.graph.nodes[id];
    made.list_first = list_first;
    made.list_count = list_count;
    made.host_reason = std::move(host_reason);
    const py::dict meta = node.attr("meta");
    if (meta.contains("stack_trace") && !meta["stack_trace"].is_none())
      made.location = location_of(std::string(py::str(meta["stack_trace"])));
    values_.emplace(node.ptr(), made.results);
    return {};
  }

  // Norms of reduced-precision images with float32 weights keep their statistics in float32,
  // forward and backward, which PyTorch's meta functions do not say.
  void widen_statistics(const std::string& name, const std::vector<ir::ValueId>& operands,
                        std::vector<ir::TensorType>& types) {
    struct Norm {
      std::string_view name;
      std::size_t weight, first;  // operand; first of the two statistics
      bool backward;              // statistics are operands, else results
    };
    static constexpr std::array<Norm, 6> kNorms{{
        {"aten.native_layer_norm", 1, 1, false},
        {"aten.native_group_norm", 1, 1, false},
        {"aten._native_batch_norm_legit_functional", 1, 1, false},
        {"aten.native_layer_norm_backward", 4, 2, true},
        {"aten.native_group_norm_backward", 4, 2, true},
        {"aten.native_batch_norm_backward", 2, 5, true},
    }};
    const auto norm =
        std::find_if(kNorms.begin(), kNorms.end(), [&](const Norm& n) { return n.name == name; });
    if (norm == kNorms.end() || norm->weight >= operands.size() ||
        operands[norm->weight] == ir::kNone ||
        out_.graph.values[operands[norm->weight]].type.dtype != ir::DType::kFloat32)
      return;
    const auto widen = [](ir::TensorType& type) {
      if (type.dtype == ir::DType::kBFloat16 || type.dtype == ir::DType::kFloat16)
        type.dtype = ir::DType::kFloat32;
    };
    for (std::size_t i = norm->first; i < norm->first + 2; ++i) {
      if (!norm->backward && i < types.size()) widen(types[i]);
      if (norm->backward && i < operands.size() && operands[i] != ir::kNone &&
          out_.graph.values[operands[i]].kind == ir::ValueKind::kInput)
        widen(out_.graph.values[operands[i]].type);
    }
  }

  // Values carry no storage offset: the attribute counts from the base's own start. Where an
  // argument starts no guard of TorchDynamo's says.
  Status make_offset_relative(const std::string& name, const py::tuple& args, ir::ValueId base,
                              std::vector<ir::Attribute>& attributes) const {
    for (ir::Attribute& a : attributes) {
      auto* const absolute = std::get_if<ir::Dim>(&a.value);
      if (a.name != "storage_offset" || absolute == nullptr) continue;
      if (out_.graph.values[ir::view_root(out_.graph, base)].kind == ir::ValueKind::kInput)
        return unsupported(name + " counts from the start of an argument's storage");
      const py::object meta = meta_value(args[0]);
      const auto start = THPVariable_Unpack(meta.ptr()).sym_storage_offset().maybe_as_int();
      if (!start || absolute->is_class()) return unsupported(name + " at an offset of its own");
      *absolute = ir::Dim(absolute->number() - *start);
    }
    return {};
  }

  // As operand(), but a Python number becomes a constant. It takes part in type promotion as
  // numbers do: it has the type of the tensor beside it unless its own kind is higher.
  Result<ir::ValueId> tensor_operand(const py::handle& given, const std::string& op,
                                     const std::string& argument, const py::tuple& arguments,
                                     at::ScalarType result, std::string& out_host_reason) {
    if (!py::isinstance<py::int_>(given) && !py::isinstance<py::float_>(given))
      return operand(given);
    const RealTensors real;
    const at::Scalar number = *to_number(given);
    bridge::NumberOperand operand =
        bridge::number_operand(op, argument, number, tensor_type(arguments), result);
    if (!operand.host_reason.empty()) out_host_reason = std::move(operand.host_reason);
    return add_constant("number",
                        at::scalar_tensor(number, at::TensorOptions().dtype(operand.dtype)));
  }

  static std::optional<at::Scalar> to_number(const py::handle& given) {
    if (py::isinstance<py::bool_>(given)) return at::Scalar(given.cast<bool>());
    if (py::isinstance<py::int_>(given)) return at::Scalar(given.cast<std::int64_t>());
    if (py::isinstance<py::float_>(given)) return at::Scalar(given.cast<double>());
    if (!PyComplex_Check(given.ptr())) return std::nullopt;
    const Py_complex c = PyComplex_AsCComplex(given.ptr());
    return at::Scalar(c10::complex<double>(c.real, c.imag));
  }

  // The dtype of the tensors that numbers are beside: the last one's.
  std::optional<at::ScalarType> tensor_type(const py::tuple& arguments) const {
    std::optional<at::ScalarType> beside;
    for (const py::handle other : arguments)
      if (const auto found = values_.find(other.ptr()); found != values_.end())
        beside = bridge::to_scalar_type(out_.graph.values[found->second.at(0)].type.dtype);
    return beside;
  }

  std::optional<at::ScalarType> first_type(const py::tuple& arguments) const {
    for (const py::handle one : arguments)
      if (const auto found = values_.find(one.ptr()); found != values_.end())
        return bridge::to_scalar_type(out_.graph.values[found->second.at(0)].type.dtype);
    return std::nullopt;
  }

  // Of a node's first result.
  static at::ScalarType result_type(const py::object& value) {
    if (THPVariable_Check(value.ptr())) return THPVariable_Unpack(value.ptr()).scalar_type();
    if (py::isinstance<py::tuple>(value) || py::isinstance<py::list>(value))
      for (const py::handle item : value)
        if (THPVariable_Check(item.ptr())) return THPVariable_Unpack(item.ptr()).scalar_type();
    return at::kFloat;
  }

  Result<ir::ValueId> add_constant(const std::string& name, const at::Tensor& tensor) {
    BP_ASSIGN_OR_RETURN(ir::TensorType type,
                        type_of(py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor))));
    auto data = std::make_shared<ir::ConstantData>();
    data->bytes.resize(tensor.nbytes());
    if (tensor.nbytes()) std::memcpy(data->bytes.data(), tensor.const_data_ptr(), tensor.nbytes());
    return out_.graph.add_constant(name, std::move(type), std::move(data));
  }

  Result<ir::ValueId> operand(const py::handle& given) {
    if (given.is_none()) return ir::kNone;
    const auto found = values_.find(given.ptr());
    if (found == values_.end() || found->second.size() != 1)
      return unsupported("an operand that is no single tensor: " + std::string(py::str(given)));
    return found->second[0];
  }

  static ir::AttributeValue real_attribute(const at::Scalar& number) {
    if (number.isFloatingPoint()) return ir::AttributeValue(number.toDouble());
    return ir::AttributeValue(ir::Dim(number.toLong()));
  }

  Result<ir::AttributeValue> attribute_of(const py::handle& given) {
    using ir::AttributeValue;
    if (given.is_none()) return AttributeValue(std::monostate{});
    if (py::isinstance<py::bool_>(given)) return AttributeValue(given.cast<bool>());
    if (py::isinstance<py::int_>(given)) return AttributeValue(ir::Dim(given.cast<std::int64_t>()));
    if (py::isinstance<py::float_>(given)) return AttributeValue(given.cast<double>());
    if (py::isinstance(given, fx_node_)) {
      const auto found = dims_.find(given.ptr());
      if (found == dims_.end())
        return unsupported("a tensor where a number is expected: " + std::string(py::str(given)));
      return AttributeValue(found->second);
    }
    if (PyComplex_Check(given.ptr())) {
      const Py_complex c = PyComplex_AsCComplex(given.ptr());
      char text[96];
      std::snprintf(text, sizeof text, "complex:%.17g,%.17g", c.real, c.imag);
      return AttributeValue(std::string(text));
    }
    if (py::isinstance<py::str>(given)) return AttributeValue(std::string(py::str(given)));
    if (py::isinstance(given, dtype_)) {
      const auto* dtype = reinterpret_cast<const THPDtype*>(given.ptr());
      const auto found = bridge::find_dtype(dtype->scalar_type);
      if (!found) return unsupported("dtype " + std::string(py::str(given)));
      return AttributeValue(*found);
    }
    if (py::isinstance(given, device_)) {
      const c10::Device device = given.cast<c10::Device>();
      BP_RETURN_IF_ERROR(see_device(device));
      // The fallback, which alone reads it, runs on the CPU.
      return AttributeValue(std::string("device:cpu"));
    }
    if (py::isinstance(given, memory_format_))
      return AttributeValue(
          "memory_format:" +
          std::to_string(static_cast<int>(
              reinterpret_cast<const THPMemoryFormat*>(given.ptr())->memory_format)));
    if (py::isinstance(given, layout_)) {
      const at::Layout layout = reinterpret_cast<const THPLayout*>(given.ptr())->layout;
      if (layout != at::kStrided) return unsupported("a sparse layout");
      return AttributeValue("layout:" + std::to_string(static_cast<int>(layout)));
    }
    if (py::isinstance<py::list>(given) || py::isinstance<py::tuple>(given))
      return list_attribute(given);
    return unsupported("an argument of type " + std::string(py::str(py::type::of(given))));
  }

  Result<ir::AttributeValue> list_attribute(const py::handle& given) {
    std::vector<ir::Dim> dims;
    std::vector<double> reals;
    std::vector<bool> bools;
    bool any_real = false, all_bool = true;
    for (const py::handle item : given) {
      BP_ASSIGN_OR_RETURN(const ir::AttributeValue value, attribute_of(item));
      if (const bool* b = std::get_if<bool>(&value)) {
        bools.push_back(*b);
        dims.emplace_back(*b ? 1 : 0);
        reals.push_back(*b ? 1 : 0);
      } else if (const ir::Dim* d = std::get_if<ir::Dim>(&value)) {
        all_bool = false;
        dims.push_back(*d);
        reals.push_back(d->is_class() ? 0 : static_cast<double>(d->number()));
      } else if (const double* r = std::get_if<double>(&value)) {
        all_bool = false;
        any_real = true;
        reals.push_back(*r);
      } else {
        return unsupported("a list of " + std::string(py::str(py::type::of(item))));
      }
    }
    if (any_real) return ir::AttributeValue(std::move(reals));
    if (all_bool && !bools.empty()) return ir::AttributeValue(std::move(bools));
    return ir::AttributeValue(std::move(dims));
  }

  Status output(const py::handle& node) {
    py::object results = py::tuple(node.attr("args"))[0];
    if (!py::isinstance<py::list>(results) && !py::isinstance<py::tuple>(results))
      results = py::make_tuple(results);
    for (const py::handle item : results) {
      if (item.is_none()) {
        out_.outputs.emplace_back(OutputNone{});
      } else if (const auto dim = dims_.find(item.ptr()); dim != dims_.end()) {
        out_.outputs.emplace_back(dim->second);
      } else if (py::isinstance<py::int_>(item)) {
        out_.outputs.emplace_back(ir::Dim(item.cast<std::int64_t>()));
      } else {
        BP_ASSIGN_OR_RETURN(const ir::ValueId id, operand(item));
        out_.outputs.emplace_back(static_cast<std::uint32_t>(out_.graph.outputs.size()));
        out_.graph.outputs.push_back(id);
        const py::dict meta = item.attr("meta");
        out_.outputs_on_device.push_back(meta.contains("val") && is_on_device(meta["val"]));
      }
    }
    return {};
  }

  Imported out_;
  std::unordered_set<std::string> static_inputs_;
  std::unordered_map<PyObject*, std::vector<ir::ValueId>> values_;  // borrowed FX nodes
  std::unordered_map<PyObject*, ir::Dim> dims_;
  std::unordered_map<std::string, std::uint32_t> classes_;  // by expression text
  py::object module_, sym_int_, sym_float_, sym_bool_, dtype_, device_, memory_format_, layout_;
  py::object op_overload_, fx_node_, getitem_;
};

}  // namespace

Imported wrap_graph(ir::Graph graph) {
  Imported out;
  for (std::uint32_t i = 0; i < graph.inputs.size(); ++i)
    out.arguments.push_back({Argument::Kind::kTensor, i});
  for (const ir::DimClass& dim_class : graph.dim_classes) {
    if (!dim_class.expression.empty()) continue;
    out.arguments.push_back(
        {Argument::Kind::kInteger, static_cast<std::uint32_t>(out.integer_arguments.size())});
    out.integer_arguments.push_back(dim_class.name);
  }
  for (std::uint32_t i = 0; i < graph.outputs.size(); ++i) out.outputs.emplace_back(i);
  out.graph = std::move(graph);
  return out;
}

std::string location_of(std::string_view trace) {
  const std::size_t file = trace.rfind("File \"");
  if (file == std::string_view::npos) return {};
  const std::size_t end = trace.find('"', file + 6);
  const std::size_t line = trace.find("line ", end);
  if (end == std::string_view::npos || line == std::string_view::npos) return {};
  std::string_view path = trace.substr(file + 6, end - file - 6);
  if (const std::size_t slash = path.rfind('/'); slash != std::string_view::npos)
    path.remove_prefix(slash + 1);
  std::size_t stop = line + 5;
  while (stop < trace.size() && trace[stop] >= '0' && trace[stop] <= '9') ++stop;
  return std::string(path) + ":" + std::string(trace.substr(line + 5, stop - line - 5));
}

Result<Imported> import_graph(const py::object& graph_module, const std::string& name,
                              const std::vector<std::string>& static_inputs) {
  return Importer(name, static_inputs).run(graph_module);
}

}  // namespace backplane::fx
