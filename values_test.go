package flannel_test

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// place is where a value stands: the groups of a pattern, which are added. In the file, every white space is one blank.
type place struct{ path, pattern string }

// values are stated in several places, the first of which is the code or the program that is measured. Only values that
// more than one page states, or that people set alarms and firewalls by, need a row. CHANGELOG.md is left out: what it
// says of a release was true then.
var values = []struct {
	what   string
	places []place
}{
	{"the demo", []place{{"Makefile", `three nodes on this machine, in (\w+ \w+) once`}, {"README.md", `CNI plugins and pods; (.+?), once`},
		{"Documentation/lab.md", `a guided tour of (\w+ \w+)`}}},
	{"until a silent etcd is noticed", []place{
		{"subnet/etcd/dial.go", `DialKeepAliveTime: cmp.Or\(o.keepAlive, (.+?)\), DialKeepAliveTimeout: (.+?),`},
		{"Documentation/architecture.md", `silent server after (.+?) \(etcd\)`}, {"Documentation/reliability.md", `noticed after (.+?);`}}},
	{"until a silent API server is noticed", []place{
		{"subnet/kube/transport.go", `pingAfter = (.+?) // .+? pingTimeout = (\S+ \* \S+)`},
		{"Documentation/architecture.md", `\(etcd\) or (\d+) \(API server\)`}, {"Documentation/kubernetes.md", `notices a silent one after (.+?),`}}},
	{"a problem is logged again after", []place{{"pkg/daemon/join.go", `repeatLog = (\S+)`},
		{"Documentation/running.md", `is repeated (.+?) while it lasts`}, {"Documentation/configuration.md", `in the log (once a\s\w+)`},
		{"Documentation/windows.md", `so does the log (.+?),`}, {"Documentation/troubleshooting.md", `its log does, \[(.+?)\]`}}},
	{"not up to date, until NetworkUnavailable", []place{{"subnet/kube/manager.go", `o.Grace = (\S+)`},
		{"Documentation/kubernetes.md", `has not been up to date for more than (.+?);`}}},
	{"retention of peers", []place{{"cmd/flanneld/flags.go", `"retain-peers", "SECONDS", "(\d+)"`},
		{"Documentation/reliability.md", "`--retain-peers`, (.+?)\\)"}, {"Documentation/reliability.md", `\[retained for (.+?)\]`},
		{"Documentation/kubernetes.md", `the routes to them \[for (.+?)\]`}}},
	{"a turn of a disruptive configuration", []place{{"cmd/flanneld/flags.go", `"config-stagger", Arg: "DURATION", Def: "(.+?)"`},
		{"Documentation/configuration.md", "`--config-stagger=(\\w+)`, the default"}, {"Documentation/reliability.md", `go back after (\d+ \w+) without`}}},
	{"wait for another flanneld to end", []place{{"cmd/flanneld/run.go", `waitForOther = (\S+ \* \S+)`},
		{"Documentation/running.md", `did not end within (.+?);`}}},
	{"renewal before the end of a lease", []place{{"subnet/etcd/manager.go", `margin: .+?, (time\.\w+)\)`},
		{"Documentation/running.md", `It is renewed (.+?) before its end`}}},
	{"etcd's lease", []place{{"subnet/etcd/manager.go", `ttl: .+?, (\d+\*\S+?)\)`}, {"cmd/flanneld/flags.go", `renew the lease \((.+?)\)`},
		{"Documentation/configuration.md", `an etcd lease of (.+?),`}}},
	{"a lease that is deleted, until exit", []place{{"subnet/etcd/heldkey.go", `burst = (\S+ \* \S+)`},
		{"Documentation/reliability.md", `exit status 1, after (.+?) in which`}}},
	{"a conflict about a lease", []place{{"subnet/patience.go", `conflictMax = (\S+ \* \S+)`},
		{"Documentation/reliability.md", `the key is wrong for at most (.+?) in each`}}},
	{"the guard's trial", []place{{"subnet/guard.go", `o.Int\(trial, (\d+),`}, {"Documentation/guard.md", "`GuardTrial` \\| (.+?) \\|"},
		{"Documentation/configuration.md", "`GuardTrial` \\| `audit`, `\\[\\]`, (.+?) \\|"}}},
	{"repair of WireGuard's peers", []place{{"pkg/linux/wgtraffic_linux.go", `pollInterval = (\S+ \* \S+)`},
		{"Documentation/backends.md", `the routes; within (.+?) its key`}, {"Documentation/reliability.md", `within milliseconds, the rest within (.+?),`},
		{"Documentation/architecture.md", `peers are listed every (.+?),`}}},
	{"repair of HNS's policies", []place{{"pkg/windows/hns.go", `p.Poll = cmp.Or\(p.Poll, (.+?)\)`},
		{"Documentation/architecture.md", `network's policies every (.+?),`}, {"Documentation/windows.md", `is repaired within about (.+?),`}}},
	{"without addresses, until HNS's network is deleted", []place{{"pkg/windows/hns.go", `p.Rollback = cmp.Or\(p.Rollback, (.+?)\)`},
		{"Documentation/architecture.md", `has lacked its addresses for (.+?) gets`}, {"Documentation/windows.md", `not had its addresses for (.+?) after`}}},
	{"restoring a static address", []place{{"pkg/windows/hns.go", `p.Address = cmp.Or\(p.Address, (.+?)\)`},
		{"Documentation/architecture.md", `addresses are restored after (.+?),`}, {"Documentation/windows.md", `configured manually \| (.+?);`}}},
	{"minutes that wait takes", []place{{"cmd/flanneld/wait.go", `"timeout", (\d+)\*time.Minute`}, {"Documentation/running.md", "Status 3 after `--timeout` \\((\\d+) min"},
		{"dist/windows/start.ps1", `TimeoutMinutes = (\d+)`}, {"dist/windows/kube-proxy.ps1", `TimeoutMinutes = (\d+)`},
		{"Documentation/windows-quickstart.md", "`-TimeoutMinutes` \\((\\d+)\\)"}, {"Documentation/kube-proxy-windows.yml", `for at most (\d+) minutes`}}},
	{"limit of cni-conf", []place{{"cmd/flanneld/cniconf.go", `"timeout", (.+?),`}, {"Documentation/configuration.md", "`--timeout` \\| (.+?) \\|"}}},
	{"size of a log", []place{{"pkg/logging/file.go", `maxFile = (\S+ << \S+)`}, {"cmd/flanneld/flags.go", `to FILE instead of stderr; at (.+?) it is`},
		{"Documentation/running.md", `names; at (.+?) the file`}, {"Documentation/windows.md", `for none\)\. At (.+?) the file`}}},
	{"keys that are rejected by name", []place{{"subnet/etcd/list.go", `maxRejects = (\d+)`}, {"Documentation/running.md", `valid lease, the first (.+?)\)`},
		{"Documentation/reliability.md", `rejected by name \(the first (.+?)\)`}, {"Documentation/etcd-security.md", `without a valid lease \| (.+?), with`}}},
	{"value of a lease", []place{{"subnet/etcd/value.go", `maxValue = (\S+ << \S+)`}, {"Documentation/etcd-security.md", `value of a lease \| (.+?);`}}},
	{"repairs of the firewall at once", []place{{"pkg/linux/firewall/reconcile_linux.go", `repairBurst = (\d+)`}, {"Documentation/running.md", `repairs it (\d+) times at once`}}},
	{"Linux' port of vxlan", []place{{"backend/vxlan_mixed.go", `vxlanLinuxPort = (\d+)`}, {"Documentation/backends.md", "`Port` \\| (84\\d+) \\|"},
		{"Documentation/backends.md", `UDP (\d+) \(with Windows`}, {"Documentation/troubleshooting.md", "accept before it (\\d+)/udp"}, {"Documentation/install.md", `vxlan (\d+)/udp`}}},
	{"Windows' port of vxlan", []place{{"backend/vxlan_mixed.go", `vxlanWindowsPort = (\d+)`}, {"Documentation/backends.md", "`Port` \\| (4\\d+) \\|"},
		{"Documentation/backends.md", `with Windows nodes (\d+)\)`}, {"Documentation/windows-quickstart.md", `Open UDP (4\d+)`},
		{"Documentation/windows.md", `UDP (\d+) \(vxlan\)`}, {"Documentation/troubleshooting.md", `VNI 4096, Port (\d+)`}}},
	{"WireGuard's port", []place{{"backend/wireguard.go", `wireguardPort = (\d+)`}, {"Documentation/backends.md", "`ListenPort` \\| (\\d+)"},
		{"Documentation/backends.md", `UDP (\d+) \(IPv6`}, {"Documentation/troubleshooting.md", `wireguard (\d+),`}}},
	{"the port of udp", []place{{"pkg/dataplane/kinds.go", `cmp.Or\(k.Port, (82\d+)\)`}, {"Documentation/backends.md", `UDP (82\d+) open`}, {"Documentation/backends.md", "`Port` \\| (82\\d+)"},
		{"Documentation/troubleshooting.md", "`udp` (\\d+)/udp"}}},
	{"alert FlanneldPeersDiffer", []place{{"dist/monitoring/rules.yaml", `alert: FlanneldPeersDiffer .+? for: (\w+)`},
		{"Documentation/running.md", `different numbers of peers for (.+?)\.`}}},
	{"alert FlanneldConfigPending", []place{{"dist/monitoring/rules.yaml", `alert: FlanneldConfigPending .+? for: (\w+)`},
		{"Documentation/running.md", `has not been used for (.+?) \|`}}},
	{"alert FlanneldStoreSilent", []place{{"dist/monitoring/rules.yaml", `flanneld_store_silent_seconds > (\d+)`},
		{"Documentation/running.md", `API server has not answered for (.+?), or`}}},
	{"alert FlanneldStoreRefuses", []place{{"dist/monitoring/rules.yaml", `alert: FlanneldStoreRefuses .+? for: (\w+)`},
		{"Documentation/running.md", `API server has refused .+? configuration for (.+?) \|`}}},
	{"alert FlanneldLeaseEnds", []place{{"dist/monitoring/rules.yaml", `flanneld_lease_remaining_seconds < (\d+)`},
		{"Documentation/running.md", `ends in less than (.+?)\.`}}},
	{"the release of Kubernetes", []place{{"dist/chart/Chart.yaml", `kubeVersion: ">=(\d+\.\d+)`}, {"Documentation/install.md", `Kubernetes (\S+) or later`}}},
}

// What code and pages say about one value agrees.
func TestValuesAgree(t *testing.T) {
	files := map[string]string{}
	for _, v := range values {
		var want float64
		for _, p := range v.places {
			if files[p.path] == "" {
				raw, err := os.ReadFile(p.path)
				if err != nil {
					t.Fatal(err)
				}
				files[p.path] = strings.Join(strings.Fields(string(raw)), " ")
			}
			found := regexp.MustCompile(p.pattern).FindAllStringSubmatch(files[p.path], -1)
			if len(found) == 0 {
				t.Errorf("%s: %s has no %q: adapt the pattern to the text, or delete the place", v.what, p.path, p.pattern)
			}
			for _, m := range found {
				got := 0.0
				for _, text := range m[1:] {
					n, err := quantity(text)
					if err != nil {
						t.Errorf("%s: %s: %v", v.what, p.path, err)
					}
					got += n
				}
				if want = cmp.Or(want, got); got != want {
					t.Errorf("%s: %s says %q (%g), %s says %g", v.what, p.path, m[0], got, v.places[0].path, want)
				}
			}
		}
	}
}

var (
	shifted  = regexp.MustCompile(`^(\d+) << (\d+)$`)
	measured = regexp.MustCompile(`^(?:once )?(?:([\d.,_]+|[a-z]+) ?\*? ?)?(?:time\.)?([A-Za-z]*)$`)
	written  = map[string]float64{"": 1, "a": 1, "an": 1, "two": 2, "three": 3, "five": 5, "ten": 10}
	units    = map[string]float64{"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "second": 1, "minute": 60, "hour": 3600, "mib": 1 << 20, "kib": 1 << 10}
)

// quantity is the number that a text in Go or English means, in seconds or bytes if it has a unit.
func quantity(text string) (float64, error) {
	if m := shifted.FindStringSubmatch(text); m != nil {
		n, _ := strconv.Atoi(m[1])
		bits, _ := strconv.Atoi(m[2])
		return float64(n << bits), nil
	}
	m := measured.FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("%q is no quantity", text)
	}
	name := strings.ToLower(m[2])
	per, known := units[name]
	if !known {
		per, known = units[strings.TrimSuffix(name, "s")]
	}
	n, isWord := written[m[1]]
	if !isWord {
		var err error
		if n, err = strconv.ParseFloat(strings.NewReplacer(",", "", "_", "").Replace(m[1]), 64); err != nil {
			return 0, fmt.Errorf("%q: %w", text, err)
		}
	}
	if !known || m[1]+m[2] == "" {
		return 0, fmt.Errorf("%q is no quantity", text)
	}
	return n * per, nil
}
