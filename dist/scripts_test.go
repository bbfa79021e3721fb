package dist_test

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"flannel/dist/windows/check"
	"flannel/internal/test/nettest"
	"flannel/pkg/windows/sourcevip"
)

// parseScripts parses files by PowerShell's grammar, because tests run without PowerShell.
func parseScripts(t *testing.T, files ...string) []check.Script {
	t.Helper()
	if len(files) == 0 {
		t.Fatal("no scripts")
	}
	all, err := check.Parse(nettest.Tool(t, "powershell/parse.mjs"), files...)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func scripts(t *testing.T) []check.Script {
	t.Helper()
	files, err := filepath.Glob("windows/*.ps*1")
	if err != nil || len(files) < 6 {
		t.Fatalf("only %v: %v", files, err)
	}
	return parseScripts(t, files...)
}

// cmdlets are those of Windows PowerShell 5.1 that the scripts use. A name that is neither here nor a function of the
// scripts is misspelt, or needs a newer PowerShell.
var cmdlets = strings.Fields(`Add-Member ConvertFrom-Json ConvertTo-Json Export-ModuleMember ForEach-Object Get-CimInstance Get-Date Get-Process
	Get-ScheduledTask Get-Service Get-Variable Import-Module Invoke-CimMethod Join-Path Move-Item New-Item New-Object New-ScheduledTaskAction
	New-ScheduledTaskPrincipal New-ScheduledTaskSettingsSet New-ScheduledTaskTrigger New-Service New-TimeSpan Out-Host
	Register-ScheduledTask Remove-Item Select-Object Set-StrictMode Set-Variable Split-Path Start-Process Start-Service Start-Sleep Start-Transcript Stop-Transcript
	Stop-Process Stop-ScheduledTask Stop-Service Test-Path Unregister-ScheduledTask Where-Object Write-Host Write-Verbose Write-Warning`)

func TestScriptsParse(t *testing.T) {
	all := scripts(t)
	known := slices.Clone(cmdlets)
	for _, s := range all {
		known = append(known, s.Functions...)
	}
	used := map[string]bool{}
	for _, s := range all {
		for _, e := range s.Errors {
			t.Errorf("%s:%s", s.File, e)
		}
		for _, c := range s.Commands {
			used[c.Name] = true
			if !strings.ContainsAny(c.Name, "$(") && !slices.Contains(known, c.Name) {
				t.Errorf("%s:%d: unknown command %s", s.File, c.Line, c.Name)
			}
			// Without Invoke-Program, a line on stderr may end the script.
			if strings.HasPrefix(c.Name, "$") && c.Name != "$Program" {
				t.Errorf("%s:%d: not run by Invoke-Program: %s", s.File, c.Line, c.Text)
			}
			// Without -LiteralPath, brackets in a path are a pattern.
			if slices.Contains([]string{"Test-Path", "Remove-Item", "Move-Item"}, c.Name) && !strings.Contains(c.Text, "-LiteralPath") {
				t.Errorf("%s:%d: no -LiteralPath: %s", s.File, c.Line, c.Text)
			}
		}
		text := read(t, s.File)
		if at := strings.IndexFunc(text, func(r rune) bool { return r > '~' }); at >= 0 {
			t.Errorf("%s: %q is not ASCII: Windows PowerShell reads a file without a byte order mark in the machine's code page", s.File, text[at:min(at+20, len(text))])
		}
	}
	for _, name := range known {
		if !used[name] {
			t.Errorf("%s is not used", name)
		}
	}
	broken := filepath.Join(t.TempDir(), "broken.ps1")
	write(t, broken, "function f {\n  if ($x { 1 }\n}\n")
	if s := parseScripts(t, broken); len(s[0].Errors) == 0 {
		t.Error("a script with a syntax error parses, so this test proves nothing")
	}
}

// call is a call of flanneld.exe: where it is, and its arguments, in which variables are not replaced.
type call struct {
	where string
	args  []string
}

// component matches a call of Start-Component, with the name of the program.
var component = regexp.MustCompile(`^Start-Component \$BaseDir '([\w-]+)'`)

// steps returns the names of the commands of flanneld.exe and of the components that a script runs, in order.
func steps(s check.Script) (all []string) {
	calls := s.Calls()
	for _, c := range s.Commands {
		if len(calls) > 0 && calls[0].Text == c.Text && calls[0].Line == c.Line {
			if at := slices.IndexFunc(calls[0].Words, func(a string) bool { return !strings.HasPrefix(a, "-") }); at >= 0 {
				all = append(all, calls[0].Words[at])
			}
			calls = calls[1:]
		}
		switch m := component.FindStringSubmatch(c.Text); {
		case m != nil:
			all = append(all, m[1])
		case c.Name == "Get-KubeProxyArguments":
			all = append(all, "source-vip")
		}
	}
	return all
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
		case !isFlag && command == "service":
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

// The commands and flags of flanneld that scripts and manifests use exist.
func TestScriptsCallWhatThereIs(t *testing.T) {
	var calls []call
	for _, s := range scripts(t) {
		for _, c := range s.Calls() {
			calls = append(calls, call{s.File + ":" + c.Text, c.Words})
		}
	}
	for _, name := range windowsManifests {
		calls = append(calls, manifestCalls(t, name)...)
	}
	if len(calls) < 17 {
		t.Fatalf("only %d calls were found: %q", len(calls), calls)
	}
	known := helps{}
	for _, c := range calls {
		if wrong := known.wrong(t, c.args); wrong != "" {
			t.Errorf("%s\n%q\nflanneld has no %s", c.where, c.args, wrong)
		}
	}
	for _, bad := range []string{"no-such", "--no-such", "cleanup --no-such", "cleanup now", "service erase", "service install -- --no-such", "service install --v=4", "service start --start"} {
		if known.wrong(t, strings.Fields(bad)) == "" {
			t.Errorf("%s is accepted, so this test proves nothing", bad)
		}
	}
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

// start.ps1 has the steps of the quickstart, in its order: the outage before anything depends on the network, kube-proxy last.
func TestStartGoesByTheDocumentation(t *testing.T) {
	all := scripts(t)
	at := slices.IndexFunc(all, func(s check.Script) bool { return filepath.Base(s.File) == "start.ps1" })
	got := steps(all[at])
	// The daemon runs as a service or as a process.
	want := []string{"install-cni", "net-conf", "prepare", "cni-conf", "kubelet", "service", "flanneld", "wait", "source-vip", "kube-proxy", "status", "doctor"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("start.ps1 (+):", diff)
	}
	text, last := read(t, "..", "Documentation", "windows-quickstart.md"), 0
	for _, step := range want[:len(want)-1] {
		next := strings.Index(text[last:], "**"+step+"**")
		if next < 0 && step != "service" {
			t.Errorf("%s is not the next step in windows-quickstart.md", step)
		}
		last += max(next, 0)
	}
}

// The flags that the scripts pass to kube-proxy and kubelet exist in their sources.
func TestKubeProxyHasItsFlags(t *testing.T) {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	cmd.Dir = filepath.Join("..", "cmd", "flannel-lab", "kube")
	dir, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	from := func(component string, files ...string) (text string) {
		for _, f := range files {
			text += read(t, strings.TrimSpace(string(dir)), "cmd", component, "app", f)
		}
		return text
	}
	module, start := read(t, "windows", "flannel.psm1"), read(t, "windows", "start.ps1")
	proxy := module[strings.Index(module, "    '--v=2'"):strings.Index(module, "    $answer.kubeProxyFlags")]
	for _, p := range []sourcevip.Proxy{{Network: "n", VIP: netip.MustParseAddr("10.244.1.2"), Cluster: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Gates: []string{"A=true"}}, {Network: "n"}} {
		proxy += "'" + strings.Join(p.Flags(), "' '") + "'"
	}
	kubelet := start[strings.Index(start, "$arguments = @(\"--config"):strings.Index(start, "Start-Component $BaseDir 'kubelet'")]
	flag := regexp.MustCompile(`["']--([\w-]+)`)
	count := 0
	for text, source := range map[string]string{
		proxy: from("kube-proxy", "options.go", "init_windows.go"), kubelet: from("kubelet", "options/options.go", "options/osflags_windows.go"),
	} {
		for _, m := range flag.FindAllStringSubmatch(text, -1) {
			if count++; m[1] != "v" && !strings.Contains(source, `, "`+m[1]+`", `) && !strings.Contains(source, `"`+m[1]+`",`) {
				t.Errorf("there is no flag --%s", m[1])
			}
		}
	}
	if count < 17 {
		t.Errorf("only %d flags were found", count)
	}
}

// kubelet's configuration has only fields of its API version.
func TestKubeletKnowsItsConfiguration(t *testing.T) {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubelet")
	cmd.Dir = filepath.Join("..", "cmd", "flannel-lab", "kube")
	dir, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	types := read(t, strings.TrimSpace(string(dir)), "config", "v1beta1", "types.go")
	fields := func(of string) []string {
		_, below, ok := strings.Cut(types, "\ntype "+of+" struct {\n")
		if !ok {
			t.Fatalf("no type %s", of)
		}
		inside, _, _ := strings.Cut(below, "\n}\n")
		var all []string
		for _, m := range regexp.MustCompile("`json:\"(\\w+)").FindAllStringSubmatch(inside, -1) {
			all = append(all, m[1])
		}
		return all
	}
	start := read(t, "windows", "start.ps1")
	hash := find(t, start, `(?s)Write-Text \$KubeletConfig \(\[ordered\]@\{[^\n]*(.*?)\n            \}`)
	known, count := append(fields("KubeletConfiguration"), "apiVersion", "kind"), 0
	key := regexp.MustCompile(`(?m)(?:^|[;{])\s*(\w+) = `)
	for _, m := range key.FindAllStringSubmatch(hash, -1) {
		if count++; !slices.Contains(known, m[1]) {
			t.Errorf("kubelet's configuration has no %s", m[1])
		}
	}
	if count < 9 {
		t.Errorf("only %d keys were found", count)
	}
	inner := find(t, start, `\$authentication = @\{ (.*?) \}\n?`)
	names := key.FindAllStringSubmatch("{"+inner, -1)
	if len(names) != 2 || !slices.Contains(fields("KubeletAuthentication"), names[0][1]) || !slices.Contains(fields("KubeletX509Authentication"), names[1][1]) {
		t.Errorf("kubelet's authentication has no %q", names)
	}
}
