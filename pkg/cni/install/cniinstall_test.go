package install

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A plan is not carried out if the content of the file has changed since.
func TestPlanOutOfDate(t *testing.T) {
	for name, c := range map[string]struct{ before, after string }{
		"made meanwhile": {"", istio}, "changed meanwhile": {"x", istio}, "deleted meanwhile": {list("mesh"), ""}, "emptied meanwhile": {"x", "empty"},
	} {
		n := newNode(t)
		put := func(text string) {
			_ = os.Remove(n.ConfTo)
			if text != "" {
				n.write(n.ConfTo, strings.TrimPrefix(text, "empty"))
			}
		}
		put(c.before)
		p, err := (&confFile{from: n.ConfFrom, to: n.ConfTo}).plan(true)
		n.must(err)
		put(c.after)
		if _, err := p.write(); err != errChanged || n.read(n.ConfTo) != strings.TrimPrefix(c.after, "empty") {
			t.Errorf("%s: %v, and the file is %q", name, err, n.read(n.ConfTo))
		}
	}
}

// installMeanwhile has Install run, and does something else while Install waits for a file to stay the same.
func (n *node) installMeanwhile(meanwhile func()) (done []Outcome, err error) {
	installed := make(chan struct{})
	go func() {
		done, err = n.Install(slog.New(n.log))
		close(installed)
	}()
	synctest.Wait()
	meanwhile()
	<-installed
	return done, err
}

// Another program is writing the configuration when Install or the keeper starts: its plugins are not lost.
func TestHalfWrittenAtTheStart(t *testing.T) {
	half := istio[:len(istio)/2]
	complete := func(n *node) {
		if n.read(n.ConfTo) != half {
			n.t.Errorf("replaced at once by\n%s", n.read(n.ConfTo))
		}
		n.write(n.ConfTo, istio)
	}
	for name, run := range map[string]func(*node) error{
		"Install": func(n *node) error {
			_, err := n.installMeanwhile(func() { complete(n) })
			return err
		},
		"keeper": func(n *node) error {
			k, now := &keeper{target: n.conf(), log: slog.New(n.log)}, time.Now()
			delay, err := k.pass(now)
			n.must(err)
			complete(n)
			_, err = k.pass(now.Add(delay))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.PluginFrom, n.PluginTo = "", ""
				n.write(n.ConfTo, half)
				if err := run(n); err != nil || n.types() != "flannel portmap istio-cni" {
					t.Errorf("%v, %s", err, n.types())
				}
			})
		})
	}
}

// A configuration that is never usable and changes all the time is an error, and is left alone.
func TestNeverStable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		text := ""
		writing := n.conf()
		writing.plan = func(enforce bool) (plan, error) {
			text += "x"
			n.write(n.ConfTo, text)
			return n.conf().plan(enforce)
		}
		if _, err := writing.install(slog.New(n.log)); !errors.Is(err, errChanged) || n.read(n.ConfTo) != text {
			t.Errorf("%v\n%s", err, n.read(n.ConfTo))
		}
	})
}

// A configuration counts as written although the record could not be written after it: the change is logged.
func TestRecordCannotBeWritten(t *testing.T) {
	n := newNode(t)
	target := target{to: n.ConfTo, plan: func(enforce bool) (plan, error) {
		p, err := (&confFile{from: n.ConfFrom, to: n.ConfTo}).plan(enforce)
		n.must(os.MkdirAll(filepath.Join(recordOf(n.ConfTo), "directory"), 0o755))
		return p, err
	}}
	k := &keeper{target: target, log: slog.New(n.log)}
	if _, err := k.pass(time.Now()); err == nil || n.read(n.ConfTo) != source || len(n.log.with("INFO", "reason=missing")) != 1 {
		t.Errorf("%v\n%s\n%v", err, n.read(n.ConfTo), n.log)
	}
}

// istio-cni replaces a *.conf by a *.conflist. The *.conf is not restored: runtimes
// would prefer it to the list.
func TestConvertedFileIsNotRestored(t *testing.T) {
	n := newNode(t)
	n.ConfTo = n.path("net.d/10-flannel.conf")
	n.write(n.ConfFrom, `{"name":"cbr0","type":"flannel"}`)
	if done, err := n.Install(slog.New(n.log)); err != nil || done[1].Result != "written" {
		t.Fatal(done, err)
	}
	n.must(os.Rename(n.ConfTo, n.ConfTo+".old"))
	n.write(n.ConfTo+"list", list("flannel", "istio-cni"))
	if done, err := n.Install(slog.New(n.log)); err != nil || done[1].Result != "unchanged" || n.read(n.ConfTo) != "" {
		t.Error(done, err)
	}
}

func TestInstallFails(t *testing.T) {
	n := newNode(t)
	n.write(n.ConfTo, istio)
	for _, bad := range []string{"", "{}", `{"name":"cbr0","plugins":[]}`} {
		n.write(n.ConfFrom, bad)
		done, err := n.Install(slog.New(n.log))
		if err == nil || len(done) != 1 || done[0].Path != n.PluginTo || n.read(n.ConfTo) != istio {
			t.Errorf("source %q: %v, %v", bad, done, err)
		}
	}
	n.write(n.ConfFrom, source)
	n.must(errors.Join(os.Remove(n.PluginFrom), os.Mkdir(n.PluginFrom, 0o755))) // without plugins
	if done, err := n.Install(slog.New(n.log)); err == nil || len(done) != 1 || done[0].Path != n.ConfTo {
		t.Errorf("no plugin: %v, %v", done, err)
	}
	n.must(os.Remove(n.ConfFrom))
	if _, err := n.Install(slog.New(n.log)); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
