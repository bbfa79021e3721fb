package powershell

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"flannel/dist/windows/check"
)

// values evaluates expressions from left to right.
func (s *Shell) values(nodes []*check.Node) (all []any, err error) {
	for _, n := range nodes {
		v, err := s.value(n)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// value evaluates an expression or runs a command. Cases that do not evaluate
// all their operands, or have none, come first.
func (s *Shell) value(n *check.Node) (any, error) {
	switch n.Kind {
	case "text", "flag":
		return n.Text, nil
	case "number":
		return strconv.Atoi(n.Text)
	case "lambda":
		return n.Kids[0], nil
	case "block":
		return s.block(n)
	case "if":
		return s.ifElse(n)
	case "foreach":
		return s.forEach(n)
	case "variable":
		v, ok := s.Get(n.Text)
		if !ok {
			return nil, unknown(n, "is not set")
		}
		return v, nil
	case "hash":
		hash := map[string]any{}
		for _, e := range n.Kids {
			v, err := s.value(e.Kids[0])
			if err != nil {
				return nil, err
			}
			hash[e.Text] = v
		}
		return hash, nil
	case "command":
		return s.command(n, nil)
	case "pipe":
		return s.pipe(n)
	case "binary":
		if n.Text == "-and" || n.Text == "-or" { // the second operand may not be valid then
			v, err := s.value(n.Kids[0])
			if err != nil || truth(v) == (n.Text == "-or") {
				return truth(v), err
			}
			v, err = s.value(n.Kids[1])
			return truth(v), err
		}
	}
	// All others need all of their operands.
	kids, err := s.values(n.Kids)
	if err != nil {
		return nil, err
	}
	v, err := combine(n, kids)
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", n.Line, err)
	}
	return v, nil
}

// combine computes a value from its evaluated operands. @( ) always gives a
// list and joins lists in it.
func combine(n *check.Node, kids []any) (any, error) {
	switch n.Kind {
	case "string":
		var b strings.Builder
		for _, v := range kids {
			b.WriteString(text(v))
		}
		return b.String(), nil
	case "list":
		items := []any{}
		for _, v := range kids {
			items = append(items, list(v)...)
		}
		return items, nil
	case "cast":
		switch strings.ToLower(n.Text) {
		case "bool":
			return truth(kids[0]), nil
		case "ordered": // no difference, because our JSON has sorted keys
			return kids[0], nil
		case "string", "version": // versions stay text, see older
			return text(kids[0]), nil
		}
	case "unary":
		if strings.EqualFold(n.Text, "-not") {
			return !truth(kids[0]), nil
		}
	case "binary":
		return operate(n, kids[0], kids[1])
	case "index", "member":
		return member(n, kids[0], kids[1])
	case "invoke":
		return invoke(n, kids[0], text(kids[1]), list(kids[2]))
	}
	return nil, unknown(n, "")
}

// member returns the member of an object, or the element of a list or table at
// an index. A missing member is an error. A missing key of a table is nil.
func member(n *check.Node, of, name any) (any, error) {
	if i, ok := name.(int); ok && i >= 0 && i < len(list(of)) {
		return list(of)[i], nil
	}
	hash, ok := of.(map[string]any)
	if !ok {
		return nil, unknown(n, text(name))
	}
	if key, ok := keyOf(hash, text(name)); ok {
		return hash[key], nil
	}
	if n.Kind == "index" {
		return nil, nil
	}
	return nil, fmt.Errorf("the property '%s' cannot be found", text(name)) // an error with Set-StrictMode
}

// keyOf returns the key in hash that equals name without regard to case, or
// else name.
func keyOf(hash map[string]any, name string) (string, bool) {
	for key := range hash {
		if strings.EqualFold(key, name) {
			return key, true
		}
	}
	return name, false
}

// invoke calls a method. Only those that the scripts use are supported.
func invoke(n *check.Node, of any, method string, args []any) (any, error) {
	switch strings.ToLower(method) {
	case "tolower":
		return strings.ToLower(text(of)), nil
	case "trim":
		return strings.TrimSpace(text(of)), nil
	case "trimend":
		return strings.TrimRight(text(of), text(args[0])), nil
	case "containskey":
		if hash, ok := of.(map[string]any); ok {
			_, has := keyOf(hash, text(args[0]))
			return has, nil
		}
	}
	return nil, unknown(n, method)
}

// operate applies a binary operator. As in PowerShell, text is compared without
// regard to case, and the right operand is converted to the type of the left
// one.
func operate(n *check.Node, a, b any) (any, error) {
	switch n.Text {
	case "+":
		return sum(a, b), nil
	case "-eq":
		return strings.EqualFold(text(a), text(b)), nil
	case "-ne":
		return !strings.EqualFold(text(a), text(b)), nil
	case "-lt", "-ge":
		if !versions.MatchString(text(a)) || !versions.MatchString(text(b)) {
			return nil, unknown(n, "of "+text(a)+" and "+text(b))
		}
		return older(text(a), text(b)) == (n.Text == "-lt"), nil
	case "-join":
		return strings.Join(texts(list(a)), text(b)), nil
	case "-contains":
		for _, v := range list(a) {
			if strings.EqualFold(text(v), text(b)) {
				return true, nil
			}
		}
		return false, nil
	case "-split":
		limit := -1
		by := list(b)
		if len(by) > 1 {
			limit, _ = by[1].(int)
		}
		var all []any
		for _, part := range strings.SplitN(text(a), text(by[0]), limit) {
			all = append(all, part)
		}
		return all, nil
	}
	return nil, unknown(n, "")
}

// versions matches what -lt and -ge can compare here.
var versions = regexp.MustCompile(`^\d+(\.\d+)*$`)

// older compares versions or numbers: digits with dots between them. 1.9 is older than
// 1.10, and 1.9 than 1.9.0, as with PowerShell's type version.
func older(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		x, _ := strconv.Atoi(as[i])
		if y, _ := strconv.Atoi(bs[i]); x != y {
			return x < y
		}
	}
	return len(as) < len(bs)
}

// sum is the operator +. The left operand decides whether it joins lists, adds
// numbers or joins text.
func sum(a, b any) any {
	switch a := a.(type) {
	case nil:
		return b
	case []any:
		return append(append([]any{}, a...), list(b)...)
	case int:
		if b, ok := b.(int); ok {
			return a + b
		}
	}
	return text(a) + text(b)
}

// truth converts a value to a boolean. A list with one element counts as that
// element.
func truth(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case int:
		return v != 0
	case string:
		return v != ""
	case []any:
		return len(v) > 1 || len(v) == 1 && truth(v[0])
	}
	return true
}

// list converts a value to a list, over which PowerShell iterates: a list of
// one element for a single value, an empty one for nothing.
func list(v any) []any {
	switch v := v.(type) {
	case nil:
		return nil
	case []any:
		return v
	}
	return []any{v}
}

// text converts a value to a string.
func text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case bool:
		return map[bool]string{true: "True", false: "False"}[v]
	case []any:
		return strings.Join(texts(v), " ")
	}
	return fmt.Sprint(v)
}

// texts converts each of the values to a string.
func texts(all []any) (texts []string) {
	for _, v := range all {
		texts = append(texts, text(v))
	}
	return texts
}

// Texts returns the arguments of a program: the values as text, with lists
// expanded.
func Texts(values ...any) (all []string) {
	for _, v := range values {
		all = append(all, texts(list(v))...)
	}
	return all
}
