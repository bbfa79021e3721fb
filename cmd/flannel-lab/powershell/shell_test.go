package powershell_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"flannel/cmd/flannel-lab/powershell"
	"flannel/dist/windows/check"
	"flannel/internal/test/nettest"
)

func parse(t *testing.T, texts ...string) []check.Script {
	t.Helper()
	var files []string
	for i, text := range texts {
		files = append(files, filepath.Join(t.TempDir(), fmt.Sprintf("script%d.ps1", i)))
		if err := os.WriteFile(files[i], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := check.Parse(nettest.Tool(t, "powershell/parse.mjs"), files...)
	if err != nil || slices.ContainsFunc(all, func(s check.Script) bool { return len(s.Errors) > 0 }) {
		t.Fatal(err, all)
	}
	return all
}

const script = `param([string]$Name, [string]$Dir = "C:\$Name", [int]$Minutes = 5, [switch]$Force)
$kind = @{ one = 'first'; two = @{ a = 4 } }[$Name]
$all = @("--dir=$Dir", "--limit=${Minutes}m") + @('''q''', "a ` + "`" + `"b")
if ($Force) { $all += '--force' } elseif (-not $kind) { $all += 'none' } else { $all += "$($kind + 1)$(2)" }
function Get-Twice([string]$What, [int]$Times = 2) {
    if ($Times -eq 1) { return $What }
    $What
    Get-Twice $What 1
}
function Get-Leak {
    $null = 3
    foreach ($v in 3, 4) { $v; if ($v -ge 4) { return 5 } }
}
foreach ($v in Get-Twice 'x') { Tell (Join-Path $v 'Y\\').TrimEnd('\') }
$json = [ordered]@{ list = @('y'); no = $null; yes = ($Minutes -lt 6 -and $true) } | ConvertTo-Json -Depth 3 | ConvertFrom-Json
Tell $json.LIST $json.yes ($json.list -join '-') @('a,,b' -split ',' | Where-Object { $_ }) (Get-Leak)[1] $null ([bool]'').ToString
try {
    & $Dir @all
    throw "never"
} catch {
    Tell "caught: $_"
    throw
}
`

func TestShell(t *testing.T) {
	s := parse(t, strings.Replace(script, " ([bool]'').ToString", "", 1))[0]
	var calls [][]string
	sh := powershell.NewShell()
	sh.Commands = map[string]func([]any) (any, error){
		"Tell": func(args []any) (any, error) { calls = append(calls, powershell.Texts(args...)); return nil, nil },
		"&":    func(args []any) (any, error) { return nil, fmt.Errorf("ran %q", powershell.Texts(args...)) },
	}
	err := sh.Run(s, map[string]any{"Name": "one"})
	const ran = `ran ["C:\\one" "--dir=C:\\one" "--limit=5m" "'q'" "a \"b" "first12"]`
	if err == nil || !strings.Contains(err.Error(), ran) {
		t.Errorf("got %v, want %s", err, ran)
	}
	if len(calls) != 4 || !strings.HasPrefix(calls[3][0], "caught: ") || !strings.HasSuffix(calls[3][0], ran) {
		t.Fatalf("Tell was called with %q", calls)
	}
	if want := [][]string{{`x\Y`}, {`x\Y`}, {"y", "True", "y", "a", "b", "4"}}; !reflect.DeepEqual(calls[:3], want) {
		t.Errorf("Tell was called with %q, want %q", calls, want)
	}
	sh.Commands["&"] = func([]any) (any, error) { return nil, powershell.ErrStopped }
	calls = nil
	if err := sh.Run(s, map[string]any{"Name": "two", "Force": true}); !errors.Is(err, powershell.ErrStopped) || len(calls) != 3 {
		t.Errorf("a catch block handled ErrStopped: %v, %q", err, calls)
	}
}

// What the interpreter does not support must fail the test.
func TestUnsupportedIsAnError(t *testing.T) {
	limits := map[string]string{
		script:                                 "ToString",
		"try { Tell $none } catch { 1 }":       "none",
		"Get-Weather 'here'":                   "Get-Weather here",
		"while ($true) { 1 }":                  "while",
		"$x = @{ a = 1 }; $y = $x.b":           "'b'",
		"try { 1 } finally { 2 }":              "finally",
		"try { 1 } catch [IO.Exception] { 2 }": "catch",
		"if ('b' -lt 'a') { 1 }":               "-lt",
		"function F($A) { $A }; F -A 1":        "-A",
		"$x = 'a' -like 'b'":                   "-like",
		"param($a)\nthrow \"$a\" + 'of' + $b":  "b",
	}
	texts := slices.Sorted(maps.Keys(limits))
	for i, parsed := range parse(t, append(texts, "param($a)\n$a\n")...) {
		if i == len(texts) {
			if err := powershell.NewShell().Run(parsed, map[string]any{"b": 1}); err == nil {
				t.Error("an unknown parameter was accepted")
			}
			break
		}
		text, want := texts[i], limits[texts[i]]
		sh := powershell.NewShell()
		sh.Commands = map[string]func([]any) (any, error){
			"Tell": func([]any) (any, error) { return nil, nil },
			"&":    func([]any) (any, error) { return nil, nil },
		}
		var parameters map[string]any
		if text == script {
			parameters = map[string]any{"Name": "one"}
		}
		err := sh.Run(parsed, parameters)
		if not := (*powershell.Unknown)(nil); err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, &not) && want != "'b'" {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
