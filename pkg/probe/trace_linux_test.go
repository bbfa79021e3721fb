package probe

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
	"flannel/pkg/doctor/ruleset"
)

// TestTraceOfThePage runs the commands of the page about troubleshooting that let the kernel name a rule, with one that
// the doctor cannot evaluate.
func TestTraceOfThePage(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		page, err := os.ReadFile("../../Documentation/troubleshooting.md")
		if err != nil {
			t.Fatal(err)
		}
		_, after, marked := strings.Cut(string(page), "<!-- run: trace -->\n```sh\n")
		commands, _, ends := strings.Cut(after, "\n```")
		if !marked || !ends {
			t.Fatal("the page has no commands with the mark trace")
		}
		sh(t, hosts+"\niptables-nft -N offender; iptables-nft -A INPUT -j offender; iptables-nft -A offender -m string --algo bm --string dropped -j DROP")
		w := ways(false)["in"]
		if got := read(t).Evaluate(w.packet); got.Verdict != ruleset.Undecided {
			t.Fatalf("the doctor evaluates the rule: %+v", got)
		}
		sender := in(t, w.from, func() (int, error) { return bound(w.source, 0) })
		defer unix.Close(sender) //nolint:errcheck // a test's socket
		stop, stopped := make(chan struct{}), make(chan struct{})
		defer func() { close(stop); <-stopped }() // before the socket is closed
		go func() {
			defer close(stopped)
			for {
				_ = unix.Sendto(sender, []byte("dropped"), 0, sockaddr(w.target, tunnelPort)) // the trace shows whether it arrived
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		}()
		// Without a line grep fails, and sh -e would end before the table is deleted.
		out := sh(t, regexp.MustCompile(`(?m)^.*grep.*$`).ReplaceAllString(commands, "$0 || true"))
		if !logtest.Names(out, "filter", "offender", "drop") {
			t.Errorf("the trace does not name the rule:\n%s", out)
		}
		if left := sh(t, "nft list tables"); strings.Contains(left, "flannel-trace") {
			t.Errorf("the commands leave a table:\n%s", left)
		}
	})
}
