package cniconf

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
)

// Same tells whether two configurations say the same, whatever their spaces and the order of their keys.
func Same(a, b []byte) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return bytes.Equal(a, b)
	}
	return reflect.DeepEqual(x, y)
}

// Diff shows line by line what makes was into will: "-" before what goes, "+" before what comes, a blank before what
// stays. Both are laid out alike first, where they are JSON, so that only what they say counts.
func Diff(was, will []byte) string {
	a, b := laidOut(was), laidOut(will)
	// common[i][j] is the length of the longest common subsequence of a[i:] and b[j:]; these files are short.
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

// maxLines bounds what is compared line by line; a foreign file may be anything.
const maxLines = 1000

func laidOut(raw []byte) []string {
	var v any
	if json.Unmarshal(raw, &v) == nil {
		if nice, err := text(v); err == nil {
			raw = nice
		}
	}
	lines := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	if len(lines) > maxLines {
		lines = append(lines[:maxLines:maxLines], "…")
	}
	return lines
}
