package conflist

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
)

// Equal reports whether two configurations have the same JSON value, whatever their
// spaces and the order of their keys. If one is not JSON, it compares the bytes.
func Equal(a, b []byte) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return bytes.Equal(a, b)
	}
	return reflect.DeepEqual(x, y)
}

// diff returns the difference line by line: removed lines begin with "-", added
// ones with "+", and common ones with a blank. JSON is formatted first, so that
// spaces and the order of keys do not count.
func diff(before, after []byte) string {
	a, b := formattedLines(before), formattedLines(after)
	// common[i][j] is the length of the longest common subsequence of a[i:] and b[j:].
	// That is quadratic, but the files are short.
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if common[i][j] = max(common[i+1][j], common[i][j+1]); a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	var out strings.Builder
	line := func(mark, text string) { out.WriteString(mark + " " + text + "\n") }
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			line(" ", a[i])
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			line("-", a[i])
			i++
		default:
			line("+", b[j])
			j++
		}
	}
	return out.String()
}

// maxLines bounds the compared lines: a file that somebody else wrote may have any
// length.
const maxLines = 1000

// formattedLines returns the lines of a text, formatted if it is JSON.
func formattedLines(raw []byte) []string {
	var v any
	if json.Unmarshal(raw, &v) == nil {
		if formatted, err := text(v); err == nil {
			raw = formatted
		}
	}
	lines := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	if len(lines) > maxLines {
		lines = append(lines[:maxLines:maxLines], "…")
	}
	return lines
}
