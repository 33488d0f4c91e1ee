// The walk backwards through a gradient's records, and gradient rules that are made again without Python:
// what a rule calls for arrays of some specs is noted down when it first runs, and from then on computed
// straight on blocks.
#include "bindings/walk.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "bindings/records.h"

namespace spmdx {
namespace {

using Object = py::object;

// What Python does on the way, and where the slots of bundles and specs lie; told once and for ever.
struct Ways {
    PyTypeObject *bundle = nullptr, *operation = nullptr;
    Py_ssize_t rule = 0, inputs = 0, statics = 0, order = 0;
    PyObject* joined = nullptr;  // (node, before, g): the sum of two cotangents of a node
    PyObject* settled =
        nullptr;  // (node, g): the cotangent of a node on another mesh, where its rule wants it
    PyObject* gradient = nullptr;  // (node, i, g): the gradient with respect to its operand i, or None
} ways;

Object called(PyObject* function, std::initializer_list<PyObject*> args) {
    PyObject* const found = PyObject_Vectorcall(function, args.begin(), args.size(), nullptr);
    if (!found) throw py::error_already_set();
    return py::reinterpret_steal<Object>(found);
}

bool is_node(PyObject* x) { return Py_TYPE(x) == records.watched || Py_TYPE(x) == ways.bundle; }

// A record: of an array, or of a bundle of them.
struct Node {
    PyObject* x;
    bool bundle = Py_TYPE(x) == ways.bundle;

    PyObject* rule() const { return slot(x, bundle ? ways.rule : records.rule); }
    PyObject* inputs() const { return slot(x, bundle ? ways.inputs : records.inputs); }
    PyObject* statics() const { return slot(x, bundle ? ways.statics : records.statics); }
    int64_t order() const { return PyLong_AsLongLong(slot(x, bundle ? ways.order : records.order)); }
};

PyObject* spec_of(PyObject* array) { return slot(array, records.spec); }
PyObject* block_of(PyObject* array) { return slot(array, records.block); }

// Rules that are made again

constexpr size_t most_inputs = 4, most_slots = 24, most_rules = 4096;
constexpr int most_tries = 3;  // a rule's own calls take the short way from their second time on

// What a rule's calls depend on: the rank, if threads are ranks; the rule, which operand it is for, static
// arguments, specs, and numbers to the last bit. All else is an address, of what the Remembered keeps alive.
struct Key {
    std::array<uint64_t, 6 + 2 * most_inputs> words{};
    size_t count = 0;

    void add(const void* address) { words[count++] = reinterpret_cast<uintptr_t>(address); }
    bool operator==(const Key& other) const {
        return count == other.count && std::equal(words.begin(), words.begin() + count, other.words.begin());
    }
};

struct Hash {
    size_t operator()(const Key& key) const {
        uint64_t sum = 0;
        for (size_t i = 0; i < key.count; ++i)
            sum = (sum ^ key.words[i]) * 0x9E3779B97F4A7C15u, sum ^= sum >> 29;
        return size_t(sum);
    }
};

// The arrays of a rule: the cotangent, what the operation made, and its operands (null where that is a
// number).
struct Arrays {
    std::array<PyObject*, 2 + most_inputs> each;
    size_t count;
};

// A rule's calls in order. Operands and the result are numbers of slots: the arrays given, then what was
// made.
struct Remembered {
    struct Operand {
        size_t slot;
        Object number;  // in place of a slot: a number, or the block of a constant
    };
    struct Step {
        Object run;
        std::vector<Operand> operands;
    };
    bool is_known = false;  // else Python's way
    int tries = 0;
    bool is_none = false;  // there is no gradient
    bool adds = false;     // the operation can add a gradient to an earlier one, in its place
    std::vector<Step> steps;
    size_t result = 0;
    Object spec;
    std::vector<Object> kept;  // what the key's addresses are of
};

using Rules = std::unordered_map<Key, std::shared_ptr<const Remembered>, Hash>;
Rules& rules() {
    static auto* const all = new Rules;  // never freed: Python may be gone by then
    return *all;
}

// What goes may run Python, and that look for rules: they leave the map first.
void forget_rules() {
    Rules all;
    all.swap(rules());
}

// Arrays that are the same wherever a rule asks for them; for ever.
std::unordered_set<PyObject*>& constants() {
    static auto* const all = new std::unordered_set<PyObject*>;
    return *all;
}

void keep_constant(const Object& array) {
    if (constants().size() < most_rules && constants().insert(array.ptr()).second) array.inc_ref();
}

bool add_number(Key& key, PyObject* x) {
    uint64_t bits;
    if (PyBool_Check(x)) {
        bits = x == Py_True;
    } else if (PyLong_CheckExact(x)) {
        int overflow;
        bits = uint64_t(PyLong_AsLongLongAndOverflow(x, &overflow));
        if (overflow) return false;
    } else if (PyFloat_CheckExact(x)) {
        const double value = PyFloat_AS_DOUBLE(x);
        std::memcpy(&bits, &value, sizeof bits);
    } else {
        return false;
    }
    key.add(Py_TYPE(x));
    key.words[key.count++] = bits;
    return true;
}

// What is asked, as a key; false for what is never made again: rules that are no operations', and arrays that
// are the same one twice, of which no note could tell which was meant, or are of types of their own, or have
// no block here.
bool describe(const Node& node, Py_ssize_t i, PyObject* g, PyObject* rank, Key& key, Arrays& arrays) {
    PyObject* const inputs = node.inputs();
    const Py_ssize_t n = PyTuple_GET_SIZE(inputs);
    if (Py_TYPE(node.rule()) != ways.operation || node.bundle || size_t(n) > most_inputs || !is_array(g))
        return false;
    key.words[key.count++] = uint64_t(rank == Py_None ? -1 : PyLong_AsLongLong(rank));
    key.add(node.rule());
    PyObject* const statics = node.statics();  // an empty dict may be another each time
    key.add(PyDict_Check(statics) && !PyDict_GET_SIZE(statics) ? nullptr : statics);
    key.words[key.count++] = uint64_t(i);
    arrays.count = 0;
    const auto take = [&](PyObject* x) {
        if (!block_of(x) || block_of(x) == Py_None) return false;
        for (size_t k = 0; k < arrays.count; ++k)
            if (arrays.each[k] == x) return false;
        arrays.each[arrays.count++] = x;
        key.add(spec_of(x));
        return true;
    };
    if (!take(g) || !take(node.x)) return false;
    for (Py_ssize_t k = 0; k < n; ++k) {
        PyObject* const x = PyTuple_GET_ITEM(inputs, k);
        if (is_array(x)) {
            if (!take(x)) return false;
        } else {
            if (!add_number(key, x)) return false;
            arrays.each[arrays.count++] = nullptr;
        }
    }
    return true;
}

// The calls that gave `found`, if they are all that is behind it.
void follow(const std::vector<Call>& calls, PyObject* found, const Arrays& arrays, Remembered& into) {
    const size_t given = arrays.count;
    if (given + calls.size() > most_slots) return;
    const auto slot_of = [&](PyObject* x, size_t made) {
        for (size_t k = 0; k < given; ++k)
            if (arrays.each[k] == x) return k;
        for (size_t k = 0; k < made; ++k)
            if (calls[k].made.ptr() == x) return given + k;
        return most_slots;
    };
    for (size_t k = 0; k < calls.size(); ++k) {
        Remembered::Step step{calls[k].run, {}};
        for (const Object& x : calls[k].operands) {
            if (!PyObject_TypeCheck(x.ptr(), records.array)) {
                step.operands.push_back({most_slots, x});
                continue;
            }
            const size_t at = slot_of(x.ptr(), k);
            if (at == most_slots && !constants().count(x.ptr())) return;
            if (at == most_slots)
                step.operands.push_back({at, py::reinterpret_borrow<Object>(block_of(x.ptr()))});
            else
                step.operands.push_back({at, {}});
        }
        into.steps.push_back(std::move(step));
    }
    into.is_none = found == Py_None;
    into.result = into.is_none ? 0 : slot_of(found, calls.size());
    into.is_known = into.result != most_slots;
    if (into.is_known && into.result >= given) into.spec = py::reinterpret_borrow<Object>(spec_of(found));
    if (into.is_none) into.steps.clear();
}

// The rule's calls on these arrays; null with an error set where one fails.
PyObject* made_again(const Remembered& rule, const Arrays& arrays) {
    std::array<PyObject*, most_slots> blocks{};
    std::vector<Object> made;
    made.reserve(rule.steps.size());
    for (size_t k = 0; k < arrays.count; ++k) blocks[k] = arrays.each[k] ? block_of(arrays.each[k]) : nullptr;
    std::vector<PyObject*> operands;
    for (const auto& step : rule.steps) {
        operands.clear();
        for (const auto& x : step.operands)
            operands.push_back(x.slot == most_slots ? x.number.ptr() : blocks[x.slot]);
        PyObject* const block =
            PyObject_Vectorcall(step.run.ptr(), operands.data(), operands.size(), nullptr);
        if (!block) return nullptr;
        blocks[arrays.count + made.size()] = block;
        made.push_back(py::reinterpret_steal<Object>(block));
    }
    if (rule.is_none) return Py_NewRef(Py_None);
    if (rule.result < arrays.count) return Py_NewRef(arrays.each[rule.result]);
    return wrapped(records.array, blocks[rule.result], rule.spec.ptr());
}

// Notes of calls are taken elsewhere, or nowhere, until this goes.
struct Notes {
    std::vector<Call>* before;
    explicit Notes(std::vector<Call>* into) : before(note_calls(into)) {}
    Notes(const Notes&) = delete;
    Notes& operator=(const Notes&) = delete;
    ~Notes() { note_calls(before); }
};

bool is_true(const Object& x) { return PyObject_IsTrue(x.ptr()) > 0; }

// The gradient with respect to operand i, or None; and whether a later one can be added in its place. Without
// a rank no rule is made again.
std::pair<Object, bool> gradient(const Node& node, Py_ssize_t i, PyObject* g, PyObject* rank) {
    const auto by_python = [&] {
        const auto number = py::reinterpret_steal<Object>(PyLong_FromSsize_t(i));
        return called(ways.gradient, {node.x, number.ptr(), g});
    };
    const auto adds = [&] { return !py::handle(node.rule()).attr("onto").is_none(); };
    Key key;
    Arrays arrays;
    if (!rank || !describe(node, i, g, rank, key, arrays)) return {by_python(), adds()};
    const auto seen = rules().find(key);
    int tries = 1;
    if (seen != rules().end()) {
        const std::shared_ptr<const Remembered> rule = seen->second;  // what runs may forget it
        if (rule->is_known) {
            if (PyObject* const found = made_again(*rule, arrays))
                return {py::reinterpret_steal<Object>(found), rule->adds};
            if (!PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();  // such as Ctrl-C
            PyErr_Clear();  // Python's way says what is wrong
        }
        tries += rule->tries;
        if (rule->is_known || tries > most_tries) return {by_python(), rule->adds};
    }
    auto rule = std::make_shared<Remembered>();
    rule->adds = adds();
    rule->tries = tries;
    std::vector<Call> calls;
    Object found;
    {
        const Notes notes(&calls);
        found = by_python();
    }
    if (is_true(py::handle(node.rule()).attr("pure"))) follow(calls, found.ptr(), arrays, *rule);
    for (PyObject* each : {node.rule(), node.statics()})
        rule->kept.push_back(py::reinterpret_borrow<Object>(each));
    for (size_t k = 0; k < arrays.count; ++k)
        if (arrays.each[k]) rule->kept.push_back(py::reinterpret_borrow<Object>(spec_of(arrays.each[k])));
    const bool later = rule->adds;
    if (rules().size() >= most_rules) forget_rules();  // bounded: a rule is cheap to note down again
    rules()[key] = std::move(rule);
    return {found, later};
}

// The walk

class Walk {
 public:
    Walk(const py::sequence& outputs, const py::sequence& cotangents, const py::sequence& leaves)
        : off_(nullptr) {
        for (const py::handle leaf : leaves) wanted_.push_back(Node{leaf.ptr()}.order());
        order_ = wanted_;
        std::sort(order_.begin(), order_.end());
        const size_t n = std::min(outputs.size(), cotangents.size());
        for (size_t k = 0; k < n; ++k) {
            const Object out = outputs[k], g = cotangents[k];
            if (Py_TYPE(out.ptr()) == records.watched && !g.is_none() && matters(Node{out.ptr()}.order()))
                give(out.ptr(), g);
        }
        PyObject* state;
        if (PyContextVar_Get(records.state, nullptr, &state) < 0) throw py::error_already_set();
        const auto kept = py::reinterpret_steal<Object>(state);
        if (PyObject_IsTrue(slot(state, records.depth)) == 0 && slot(state, records.dry) == Py_None)
            rank_ = py::reinterpret_borrow<Object>(slot(state, records.rank));
    }

    py::list run() {
        while (!queue_.empty()) {
            if (!look_after()) throw py::error_already_set();
            std::pop_heap(queue_.begin(), queue_.end());
            const auto at = held_.find(queue_.back());
            queue_.pop_back();
            const Object x = std::move(at->second.node), g = std::move(at->second.g);
            held_.erase(at);
            step(Node{x.ptr()}, g);
        }
        py::list found(wanted_.size());
        for (size_t k = 0; k < wanted_.size(); ++k) {
            const auto at = held_.find(wanted_[k]);
            found[k] = at == held_.end() ? Object(py::none()) : at->second.g;
        }
        return found;
    }

 private:
    struct Held {
        Object node, g;
        bool own = false;  // made by an operation that can add to it, and nothing else has it
    };
    const Notes off_;                         // what is called in here is none of an outer rule's calls
    std::unordered_map<int64_t, Held> held_;  // cotangents, by the place of their node in the order of making
    std::vector<int64_t> queue_;           // places of those whose rules are to run: a heap, the latest first
    std::vector<int64_t> wanted_, order_;  // the leaves' places, as given and sorted
    Object rank_;  // null where records are made, or nothing is computed: there no rule is made again

    bool matters(int64_t order) const { return order_.empty() ? order >= 0 : order >= order_.front(); }

    void give(PyObject* x, const Object& g) {
        const int64_t order = Node{x}.order();
        Held& held = held_[order];
        if (held.g) {
            held.g = called(ways.joined, {x, held.g.ptr(), g.ptr()});
            return;
        }
        held.g = g;
        if (std::binary_search(order_.begin(), order_.end(), order)) return;
        held.node = py::reinterpret_borrow<Object>(x);
        queue_.push_back(order);
        std::push_heap(queue_.begin(), queue_.end());
    }

    void step(const Node& node, Object g) {
        if (node.rule() == Py_None) return;
        if (!node.bundle && slot(spec_of(g.ptr()), records.mesh) != slot(spec_of(node.x), records.mesh))
            g = called(ways.settled, {node.x, g.ptr()});
        PyObject* const inputs = node.inputs();
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i) {
            PyObject* const x = PyTuple_GET_ITEM(inputs, i);
            if (!is_node(x) || !matters(Node{x}.order())) continue;
            if (Py_TYPE(x) == records.watched && !is_smooth(x)) continue;
            const int64_t order = Node{x}.order();
            auto before = held_.find(order);
            if (before != held_.end() && before->second.own && added(node, before->second.g, i, g)) continue;
            const auto [found, adds] = gradient(node, i, g.ptr(), rank_.ptr());
            if (found.is_none()) continue;
            give(x, found);
            before = held_.find(order);
            if (adds && before->second.g.is(found)) before->second.own = true;
        }
    }

    // Whether the operation has added this gradient to the one before, in its place.
    static bool added(const Node& node, const Object& before, Py_ssize_t i, const Object& g) {
        const Object onto = py::handle(node.rule()).attr("onto");
        if (onto.is_none()) return false;
        const auto inputs = py::reinterpret_borrow<py::tuple>(node.inputs());
        const auto statics = py::reinterpret_borrow<Object>(node.statics());
        return is_true(onto(before, i, g, *inputs, **statics));
    }
};

py::list walk(const py::sequence& outputs, const py::sequence& cotangents, const py::sequence& leaves) {
    return Walk(outputs, cotangents, leaves).run();
}

void tell_walk(const py::type& bundle, const py::type& operation, const Object& joined, const Object& settled,
               const Object& gradient) {
    ways.rule = offset_of(bundle, "rule");
    ways.inputs = offset_of(bundle, "inputs");
    ways.statics = offset_of(bundle, "static");
    ways.order = offset_of(bundle, "order");
    ways.joined = Object(joined).release().ptr();
    ways.settled = Object(settled).release().ptr();
    ways.gradient = Object(gradient).release().ptr();
    ways.operation = reinterpret_cast<PyTypeObject*>(Object(operation).release().ptr());
    ways.bundle = reinterpret_cast<PyTypeObject*>(Object(bundle).release().ptr());
}

}  // namespace

void bind_walk(py::module_& m) {
    m.def("tell_walk", &tell_walk, py::arg("bundle"), py::arg("operation"), py::arg("joined"),
          py::arg("settled"), py::arg("gradient"),
          "The types of bundles and operations, and what Python does on a walk backwards: joined(node, "
          "before, g) adds two cotangents, settled(node, g) brings one to its node's mesh, gradient(node, i, "
          "g) asks a rule.");
    m.def("walk", &walk, py::arg("outputs"), py::arg("cotangents"), py::arg("leaves"),
          "The gradients of the leaves, given those of the outputs; None for a leaf that no output depends "
          "on.");
    m.def("keep_constant", &keep_constant, py::arg("array"),
          "An array that gradient rules may be given again and again: it is the same one for ever.");
    m.def("forget_rules", &forget_rules, "Forget what gradient rules called.");
}

}  // namespace spmdx
