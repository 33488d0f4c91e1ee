// Gradient rules that are made again without Python: what a rule calls for arrays of some specs is noted down
// when it first runs, and from then on computed straight on blocks.
#include "bindings/rules.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <unordered_set>

namespace spmdx {

Ways ways;

namespace {

using Object = py::object;

PyObject* block_of(PyObject* array) { return slot(array, records.block); }

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

// Arrays that are the same wherever a rule asks for them; for ever.
std::unordered_set<PyObject*>& constants() {
    static auto* const all = new std::unordered_set<PyObject*>;
    return *all;
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

}  // namespace

// What goes may run Python, and that look for rules: they leave the map first.
void forget_rules() {
    Rules all;
    all.swap(rules());
}

void keep_constant(const Object& array) {
    if (constants().size() < most_rules && constants().insert(array.ptr()).second) array.inc_ref();
}

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

}  // namespace spmdx
