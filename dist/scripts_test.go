package dist_test

import (
	"cmp"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"flannel/internal/test/nettest"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// call is a call of flanneld.exe: where it is, and its arguments, in which variables are not replaced.
type call struct {
	where string
	args  []string
}

// manifestCalls returns the calls in the containers of a manifest.
func manifestCalls(t *testing.T, name string) (calls []call) {
	t.Helper()
	for _, o := range objects(t, document(t, name)) {
		for _, kind := range []string{"initContainers", "containers"} {
			all, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", kind)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range all {
				c := c.(map[string]any)
				command, _, _ := unstructured.NestedStringSlice(c, "command")
				args, _, _ := unstructured.NestedStringSlice(c, "args")
				if strings.HasSuffix(command[0], "flanneld.exe") {
					calls = append(calls, call{name + ": " + c["name"].(string), append(command[1:], args...)})
				}
			}
		}
	}
	return calls
}

// helps caches the help texts of flanneld, by subcommand; "" is the daemon.
type helps map[string]string

func (h helps) of(t *testing.T, command string) string {
	t.Helper()
	if _, ok := h[command]; !ok {
		out, err := exec.Command(nettest.Tool(t, "flanneld"), strings.Fields(command+" --help")...).CombinedOutput()
		if err != nil {
			out = nil
		}
		h[command] = string(out)
	}
	return h[command]
}

// has reports whether a help text lists a flag, in the format of flanneld or of Go's package flag.
func has(help, flag string) bool {
	return regexp.MustCompile(`(?m)^\s*--?` + regexp.QuoteMeta(flag) + `([ =]|$)`).MatchString(help)
}

// wrong returns the part of a call that flanneld does not have; "": it has all.
func (h helps) wrong(t *testing.T, args []string) string {
	t.Helper()
	command := ""
	for i, arg := range args {
		flag := strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-")
		isFlag := flag != arg
		name, _, _ := strings.Cut(flag, "=")
		switch {
		case i > 0 && args[i-1] == "--env": // its value
		case arg == "--" && command == "service install":
			return h.wrong(t, args[i+1:])
		case !isFlag && (command == "service" || command == "node"):
			if command += " " + arg; h.of(t, command) == "" {
				return command
			}
		case isFlag && !has(h.of(t, command), name):
			return strings.TrimSpace(command + " --" + name)
		case !isFlag && command != "":
			return command + " " + arg
		case !isFlag:
			if command = arg; h.of(t, command) == "" {
				return command
			}
		}
	}
	return ""
}

// One manifest is for both overlay and host-gw, because cni-conf reads the network configuration.
func TestManifestFollowsTheNetworkConfiguration(t *testing.T) {
	calls := manifestCalls(t, "kube-flannel-windows")
	at := slices.IndexFunc(calls, func(c call) bool { return slices.Contains(c.args, "cni-conf") })
	for backend, want := range map[string][]string{
		`{"Type": "vxlan", "VNI": 4096, "Port": 4789}`: {`"name": "flannel.4096"`, `"type": "win-overlay"`},
		`{"Type": "host-gw"}`:                          {`"name": "cbr0"`, `"type": "win-bridge"`},
	} {
		conf := filepath.Join(t.TempDir(), "net-conf.json")
		write(t, conf, `{"Network": "10.244.0.0/16", "Backend": `+backend+`}`)
		args := strings.Fields(strings.NewReplacer(`C:\mounts\kube-flannel\net-conf.json`, conf, "$(NODE_IP)", "192.0.2.1").Replace(strings.Join(calls[at].args, " ")))
		out, err := exec.Command(nettest.Tool(t, "flanneld"), append(args, "--to=-")...).CombinedOutput()
		for _, part := range append(want, `"10.244.0.0/16"`, `"10.96.0.0/12"`) {
			if err != nil || !strings.Contains(string(out), part) {
				t.Errorf("%s: %v, no %s in\n%s", backend, err, part, out)
			}
		}
	}
}

// script is a script for Windows. Tests run without PowerShell, so they look for what can be seen without it.
type script struct {
	name, text string
	defaults   map[string]string // of its parameters, as written; "": none
}

// parameter matches a parameter in a param() block, and its default.
var parameter = regexp.MustCompile(`(?m)\[(?:string|int|switch)\] ?\$(\w+)(?: = (.+?))?(?:,?$|\)$)`)

func scripts(t *testing.T) (all []script) {
	t.Helper()
	files, err := filepath.Glob("windows/*.ps1")
	if err != nil || len(files) < 7 {
		t.Fatalf("only %v: %v", files, err)
	}
	for _, f := range files {
		s := script{filepath.Base(f), read(t, f), map[string]string{}}
		_, block, found := strings.Cut(s.text, "\nparam(")
		if !found {
			t.Fatalf("%s has no parameters", f)
		}
		if !strings.HasPrefix(block, "\n") { // all of them in one line
			block = block[:strings.Index(block, "\n")+1]
		} else {
			block = block[:strings.Index(block, "\n)\n")+1]
		}
		for _, m := range parameter.FindAllStringSubmatch(block, -1) {
			s.defaults[m[1]] = m[2]
		}
		all = append(all, s)
	}
	return all
}

// Windows PowerShell reads a file without a byte order mark in the machine's code page.
func TestScriptsAreASCII(t *testing.T) {
	for _, s := range scripts(t) {
		if at := strings.IndexFunc(s.text, func(r rune) bool { return r > '~' || r < ' ' && r != '\n' }); at >= 0 {
			t.Errorf("%s has %q", s.name, s.text[at:min(at+20, len(s.text))])
		}
	}
}

// node matches the call of a command below node in a script, and verbatim the flags in all of it.
var (
	node     = regexp.MustCompile(`(?m)^& .*\bnode ([\w-]+)`)
	verbatim = regexp.MustCompile(`--([a-z][\w-]+)`)
	inArray  = regexp.MustCompile(`Invoke-Flanneld @\((.*)\)`)
	inQuotes = regexp.MustCompile(`['"](.*?)['"]`)
)

// flagOf returns the flag that a script makes of the name of a parameter: cluster-cidr of ClusterCIDR.
func flagOf(name string) string {
	return strings.ToLower(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(name, "$1-$2"))
}

// The commands and flags of flanneld that scripts and manifests use exist.
func TestScriptsCallWhatThereIs(t *testing.T) {
	known, calls, count := helps{}, []call{}, 0
	for _, s := range scripts(t) {
		for _, m := range inArray.FindAllStringSubmatch(s.text, -1) {
			var words []string
			for _, word := range inQuotes.FindAllStringSubmatch(m[1], -1) {
				words = append(words, word[1])
			}
			calls = append(calls, call{s.name, words})
		}
		commands := node.FindAllStringSubmatch(s.text, -1)
		if len(commands) == 0 && s.name != "verify.ps1" {
			t.Errorf("%s calls no command", s.name)
		}
		_, code, _ := strings.Cut(s.text, "#>")
		for _, m := range commands {
			for _, flag := range verbatim.FindAllStringSubmatch(code, -1) {
				if count++; flag[1] != "dry-run" && !has(known.of(t, "node "+m[1]), flag[1]) {
					t.Errorf("%s: node %s has no --%s", s.name, m[1], flag[1])
				}
			}
		}
	}
	for _, name := range windowsManifests {
		calls = append(calls, manifestCalls(t, name)...)
	}
	if len(calls) < 13 || count < 14 {
		t.Fatalf("only %d calls and %d flags were found: %q", len(calls), count, calls)
	}
	for _, c := range calls {
		if wrong := known.wrong(t, c.args); wrong != "" {
			t.Errorf("%s\n%q\nflanneld has no %s", c.where, c.args, wrong)
		}
	}
	for _, bad := range []string{"no-such", "--no-such", "cleanup --no-such", "cleanup now", "service erase", "service install -- --no-such", "service install --v=4", "service start --start",
		"node erase", "node stop --force"} {
		if known.wrong(t, strings.Fields(bad)) == "" {
			t.Errorf("%s is accepted, so this test proves nothing", bad)
		}
	}
}

// start.ps1 hands over all of its parameters, and flanneld.exe has the defaults that the script states.
func TestStartHasFlags(t *testing.T) {
	all := scripts(t)
	start := all[slices.IndexFunc(all, func(s script) bool { return s.name == "start.ps1" })]
	flags := map[string]string{} // with what the help says about them
	for _, about := range regexp.MustCompile(`(?m)^ +--`).Split(helps{}.of(t, "node start"), -1)[1:] {
		words := strings.Fields(about)
		flags[words[0]] = strings.Join(words, " ")
	}
	_, list, _ := strings.Cut(start.text, "foreach ($name in ")
	list, _, _ = strings.Cut(list, ") {")
	var handed []string
	for _, m := range inQuotes.FindAllStringSubmatch(list, -1) {
		handed = append(handed, m[1])
	}
	for name, value := range start.defaults {
		if name == "BaseDir" || name == "TimeoutMinutes" { // flags of their own in the script
			continue
		}
		if !slices.Contains(handed, name) {
			t.Errorf("-%s is not handed over", name)
		}
		about, found := flags[flagOf(name)]
		value = strings.Trim(value, "'")
		switch {
		case !found:
			t.Errorf("node start has no --%s", flagOf(name))
		case value == "" || strings.Contains(value, "$"): // it is a text in the help
		case !strings.Contains(about, "(default "+strconv.Quote(value)+")") && !strings.Contains(about, "(default "+value+")"):
			t.Errorf("-%s is %s by default, --%s: %s", name, value, flagOf(name), about)
		}
	}
	for _, name := range handed {
		if _, ok := start.defaults[name]; !ok {
			t.Errorf("-%s is no parameter", name)
		}
	}
	if len(handed) < 19 || len(start.defaults) != len(handed)+2 {
		t.Errorf("%d parameters, of which are handed over %q", len(start.defaults), handed)
	}
}

// Parameters that pages name are those of the scripts, and verify.ps1 has the phases of its page.
func TestPagesNameParameters(t *testing.T) {
	all := scripts(t)
	known := map[string][]string{}
	for _, s := range all {
		known[s.name] = slices.Collect(maps.Keys(s.defaults))
	}
	line := regexp.MustCompile("(?m)^\\.\\\\([\\w-]+\\.ps1)((?:.*`\n)*.*)$")
	quoted := regexp.MustCompile("`(?:([\\w-]+\\.ps1) )?-([A-Z]\\w+)`")
	option, count := regexp.MustCompile(` -([A-Z]\w+)`), 0
	for _, page := range []string{"windows-quickstart", "windows", "windows-troubleshooting", "windows-verify", "upgrade"} {
		text := read(t, "..", "Documentation", page+".md")
		for _, m := range line.FindAllStringSubmatch(text, -1) {
			code, _, _ := strings.Cut(m[2], "#")
			for _, o := range option.FindAllStringSubmatch(code, -1) {
				if count++; !slices.Contains(known[m[1]], o[1]) {
					t.Errorf("%s: %s has no -%s", page, m[1], o[1])
				}
			}
		}
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			count++
			if named, any := known[m[1]], slices.Concat(slices.Collect(maps.Values(known))...); !slices.Contains(named, m[2]) && (m[1] != "" || !slices.Contains(any, m[2])) {
				t.Errorf("%s: %s has no -%s", page, cmp.Or(m[1], "any script"), m[2])
			}
		}
	}
	if count < 20 {
		t.Errorf("only %d parameters were found", count)
	}
	at := slices.IndexFunc(all, func(s script) bool { return s.name == "verify.ps1" })
	phases := find(t, all[at].text, `ValidateSet\((.*)\)\]`)
	for _, m := range inQuotes.FindAllStringSubmatch(phases, -1) {
		if !strings.Contains(read(t, "..", "Documentation", "windows-verify.md"), "verify.ps1 -Phase "+m[1]+"\n") {
			t.Errorf("windows-verify.md does not run the phase %s", m[1])
		}
	}
}
