package check_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

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

func TestCalls(t *testing.T) {
	s := parse(t, `$kube = @('--kube', "--at=$K")
$more = @('cni-conf', "--to=${D}\x")
if ($Force) { $more += '--force' }
Invoke-Flanneld $flanneld ($kube + $more)
Read-Program $Flanneld @('source-vip', '--json')
Read-Program $Flanneld $Passed
Read-Program $KubeProxy @('--version')
Start-Component $B 'flanneld' $flanneld ($kube + @("--n=$($s.N)")) $LogDir $false
Start-Component $B 'kubelet' $kubelet @('--v=2')
`)[0]
	var got [][]string
	for _, c := range s.Calls() {
		got = append(got, c.Words)
	}
	want := [][]string{{"--kube", "--at=$K", "cni-conf", "--to=$D\\x", "--force"}, {"source-vip", "--json"}, {"--kube", "--at=$K", "--n=$sN"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
