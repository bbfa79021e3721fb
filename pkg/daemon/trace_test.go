package daemon

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"flannel/pkg/firewall"
	"flannel/pkg/reconcile"
)

// changingFirewall changes as many rules in each pass.
type changingFirewall struct {
	noFirewall
	rules int
}

func (f *changingFirewall) Apply(context.Context, firewall.Config) (int, error) { return f.rules, nil }

// At the debug level, a pass that changed something is one line, and those that changed nothing are one line a minute.
func TestPassesAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, log := newDaemon(t)
		d.Log = log.Debug()
		_, l := startedNode(t, d)
		rules := &changingFirewall{}
		d.Firewall = rules
		pass := func(changed reconcile.Result) {
			time.Sleep(time.Second)
			d.Tally.Add("routes", changed)
			p := l.once(t, false)
			p.took = 3 * time.Millisecond
			l.report(p)
		}
		changes := func(attrs ...string) int { return log.Count(append([]string{"level=DEBUG", "took=3ms"}, attrs...)...) }
		pass(reconcile.Result{Set: 10_000, Replaced: 1, Deleted: 2, Failed: 3})
		if changes("added=9999", "changed=1", "deleted=2", "refused=3", "firewallRules=0") != 1 || changes() != 1 {
			t.Errorf("a pass with many changes:\n%s", log)
		}
		log.Reset()
		rules.rules = 7
		if pass(reconcile.Result{}); changes("added=0", "firewallRules=7") != 1 || changes() != 1 {
			t.Errorf("a pass that changed the firewall:\n%s", log)
		}
		log.Reset()
		rules.rules = 0
		for range 121 {
			pass(reconcile.Result{})
		}
		if got := log.With("level=DEBUG").Values("passes"); len(got) != 3 || got[0] != "1" || got[1] != "60" || got[2] != "60" {
			t.Errorf("121 passes in 121 s that changed nothing are logged as %q:\n%s", got, log)
		}
	})
}
