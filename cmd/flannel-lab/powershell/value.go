package powershell

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"flannel/dist/windows/check"
)

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

// value is what an expression or a command gives. Whatever is not an expression of values alone comes first.
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
		return s.choose(n)
	case "foreach":
		return s.each(n)
	case "variable":
		v, ok := s.Get(n.Text)
		if !ok {
			return nil, unknown(n, "which nobody has set")
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
		if n.Text == "-and" || n.Text == "-or" { // the second may make no sense then
			v, err := s.value(n.Kids[0])
			if err != nil || truth(v) == (n.Text == "-or") {
				return truth(v), err
			}
			v, err = s.value(n.Kids[1])
			return truth(v), err
		}
	}
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

// combine makes one value of several. @( ) keeps a list a list, also of one, and joins lists in it; strings and numbers are
// what they say.
func combine(n *check.Node, kids []any) (any, error) {
	switch n.Kind {
	case "string":
		var b strings.Builder
		for _, v := range kids {
			b.WriteString(text(v))
		}
		return b.String(), nil
	case "list":
		all := []any{}
		for _, v := range kids {
			all = append(all, list(v)...)
		}
		return all, nil
	case "cast":
		switch strings.ToLower(n.Text) {
		case "bool":
			return truth(kids[0]), nil
		case "ordered": // the same as without, since JSON has its keys sorted here
			return kids[0], nil
		case "string", "version": // versions are compared as what they say
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

// member is that of an object, or what a table has by an index, where a missing one is no error.
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
	return nil, fmt.Errorf("the property '%s' cannot be found", text(name)) // as Set-StrictMode has it
}

// keyOf is the key of a name, which counts in any case.
func keyOf(hash map[string]any, name string) (string, bool) {
	for key := range hash {
		if strings.EqualFold(key, name) {
			return key, true
		}
	}
	return name, false
}

// invoke calls one of the few methods that the scripts have use for.
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

// operate knows that PowerShell compares text without regard to case, and takes what is right for what is left.
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

var versions = regexp.MustCompile(`^\d+(\.\d+)*$`)

// older compares numbers with dots in between: versions, and numbers.
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

// sum is +: what is left says whether it joins lists, adds numbers or joins text.
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

// truth is what a condition makes of a value: a list of one is what that one is.
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

// list is a value as PowerShell goes through it: one is a list of one, and nothing is an empty one.
func list(v any) []any {
	switch v := v.(type) {
	case nil:
		return nil
	case []any:
		return v
	}
	return []any{v}
}

// text is a value within a string.
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

func texts(all []any) (texts []string) {
	for _, v := range all {
		texts = append(texts, text(v))
	}
	return texts
}

// Texts are the values as text, lists in their places: arguments as a program gets them.
func Texts(values ...any) (all []string) {
	for _, v := range values {
		all = append(all, texts(list(v))...)
	}
	return all
}
