package windows

import (
	"os"
	"testing"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
	"flannel/pkg/windows/hostconfig"
)

const hostVirtual = "vEthernet (Ethernet)"

// withCategory runs a test on a machine whose network has a category, and whose new switches make it public.
func withCategory(t *testing.T, kind netKind, c hns.Category, test func(*windows)) {
	t.Helper()
	onWindows(t, devicesOf(kind), hnstest.Knobs{Outage: 20 * time.Second, LosesCategory: true}, func(w *windows) {
		w.category("Ethernet", c)
		test(w)
	})
}

// category sets the category of an adapter's network, as an administrator.
func (w *windows) category(adapter string, c hns.Category) {
	w.t.Helper()
	if err := w.m.Admin().SetCategory(adapter, c); err != nil {
		w.t.Fatal(err)
	}
}

// wantCategory wants the category of an adapter's network, and how often it was tried to set one, and logged that one was
// restored or lost.
func (w *windows) wantCategory(adapter string, c hns.Category, tried, restored, lost int) {
	w.t.Helper()
	sets := 0
	for _, call := range w.m.Log() {
		if call.Func == "INetwork.SetCategory" {
			sets++
		}
	}
	logged, given := w.log.Count("cause=category-restored"), w.log.Count("cause=category-lost")
	if got := w.m.Admin().Category(adapter); got != c || sets != tried || logged != restored || given != lost {
		w.t.Errorf("the network of %s is %s, want %s; set %d times, want %d; logged as restored %d times, want %d, as lost %d times, want %d",
			adapter, got, c, sets, tried, logged, restored, given, lost)
	}
}

// The category that a new switch loses is restored once, and that of the adapter when the switch is gone is as it was.
func TestCategoryRestored(t *testing.T) {
	for _, kind := range kinds {
		withCategory(t, kind, hns.Private, func(w *windows) {
			w.bring(5 * time.Minute)
			w.mends(2 * time.Minute)
			w.wantCategory(hostVirtual, hns.Private, 1, 1, 0)
			if _, err := w.cleanup(w.t.Context(), w.state.Networks, false); err != nil {
				w.t.Error(err)
			}
			w.wantCategory("Ethernet", hns.Private, 1, 1, 0)
			if _, err := os.Stat(w.opts.journalPath()); err == nil {
				w.t.Error("cleanup left the journal")
			}
		})
	}
}

// Prepare ends when the category is restored, for another program that then runs.
func TestPrepareRestoresCategory(t *testing.T) {
	withCategory(t, overlayKind, hns.Private, func(w *windows) {
		if _, _, err := w.prepared(5 * time.Minute); err != nil {
			w.t.Error(err)
		}
		w.wantCategory(hostVirtual, hns.Private, 1, 1, 0)
	})
}

// A process that is killed after it has made the switch leaves the category to the next one.
func TestCategoryRestoredAfterCrash(t *testing.T) {
	withCategory(t, overlayKind, hns.Private, func(w *windows) {
		for w.log.Count("cause="+causeNetworkMade) == 0 {
			_ = w.pass()
			time.Sleep(time.Second)
		}
		w.wantCategory(hostVirtual, hns.Public, 0, 0, 0)
		w.restart()
		w.bring(5 * time.Minute)
		w.mends(2 * time.Minute)
		w.wantCategory(hostVirtual, hns.Private, 1, 1, 0)
	})
}

// rebootTo restarts the machine, whose network then has this category, and the daemon.
func (w *windows) rebootTo(c hns.Category) {
	w.t.Helper()
	if err := w.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.Driver = nil
	w.m.Reboot()
	w.category(hostVirtual, c)
	w.restart()
}

// A public network that Windows has not identified, at the moment at which the category is saved, is nobody's choice.
func TestCategorySavedUnidentified(t *testing.T) {
	withCategory(t, overlayKind, hns.Private, func(w *windows) {
		w.bring(5 * time.Minute)
		w.mends(2 * time.Minute)
		if err := w.m.Admin().DeleteNetwork("flannel.4096"); err != nil {
			w.t.Fatal(err)
		}
		w.category("Ethernet", hns.Public) // for a moment, in which the network is made again
		w.mends(time.Minute)
		w.category(hostVirtual, hns.Private)
		w.mends(time.Minute)
		journal, err := hostconfig.ReadJournal(w.opts.journalPath())
		if err != nil || journal.Category == nil || journal.Category.Category != hns.Private {
			w.t.Errorf("the journal has %+v, %v", journal.Category, err)
		}
	})
}

// What Windows forgets at a boot is restored once after it.
func TestCategoryRestoredAfterBoot(t *testing.T) {
	withCategory(t, overlayKind, hns.Private, func(w *windows) {
		if _, _, err := w.prepared(5 * time.Minute); err != nil {
			w.t.Error(err)
		}
		w.rebootTo(hns.Public)
		w.bring(5 * time.Minute)
		w.mends(2 * time.Minute)
		w.wantCategory(hostVirtual, hns.Private, 2, 2, 0)
	})
}

// The category of a domain is left to Windows, which is logged if Windows does not find the domain; the network is up before.
func TestCategoryOfDomain(t *testing.T) {
	for _, found := range []bool{false, true} {
		withCategory(t, overlayKind, hns.Domain, func(w *windows) {
			w.bring(5 * time.Minute)
			w.wantCategory(hostVirtual, hns.Public, 0, 0, 0)
			if found {
				w.category(hostVirtual, hns.Domain)
			}
			w.mends(10 * time.Minute)
			if found {
				w.wantCategory(hostVirtual, hns.Domain, 0, 0, 0)
			} else {
				w.wantCategory(hostVirtual, hns.Public, 0, 0, 1)
			}
		})
	}
}

// That a group policy forbids it is logged once, and not tried again until the next boot.
func TestCategoryByPolicy(t *testing.T) {
	withCategory(t, overlayKind, hns.Private, func(w *windows) {
		w.m.Turn(func(k *hnstest.Knobs) { k.CategoryByPolicy = true })
		w.bring(5 * time.Minute)
		w.mends(10 * time.Minute)
		w.wantCategory(hostVirtual, hns.Public, 1, 0, 1)
		w.restart()
		w.mends(10 * time.Minute)
		w.wantCategory(hostVirtual, hns.Public, 1, 0, 1)
		// The policy ends, and an administrator sets the category and then another one, which stays over a boot.
		w.m.Turn(func(k *hnstest.Knobs) { k.CategoryByPolicy = false })
		for _, c := range []hns.Category{hns.Private, hns.Public} {
			w.category(hostVirtual, c)
			w.mends(2 * time.Minute)
		}
		if journal, err := hostconfig.ReadJournal(w.opts.journalPath()); err != nil || journal.Category != nil {
			w.t.Errorf("the journal has %+v, %v", journal.Category, err)
		}
	})
}

// A group policy that makes the network public again each time is told from an administrator, and logged once.
func TestCategoryReverts(t *testing.T) {
	withCategory(t, overlayKind, hns.Private, func(w *windows) {
		w.m.Turn(func(k *hnstest.Knobs) { k.CategoryReverts = true })
		w.bring(5 * time.Minute)
		w.mends(10 * time.Minute)
		w.wantCategory(hostVirtual, hns.Public, 12, 1, 1)
		if journal, err := hostconfig.ReadJournal(w.opts.journalPath()); err != nil || journal.Category == nil || journal.Category.Problem == "" {
			w.t.Errorf("the journal has %+v, %v", journal.Category, err)
		}
	})
}

// Nothing is written if the switch keeps the category, or if the network was public.
func TestCategoryKept(t *testing.T) {
	for _, c := range []hns.Category{hns.Public, hns.Private, hns.Domain} {
		withCategory(t, overlayKind, c, func(w *windows) {
			w.m.Turn(func(k *hnstest.Knobs) { k.LosesCategory = c == hns.Public })
			w.bring(5 * time.Minute)
			w.mends(2 * time.Minute)
			w.wantCategory(hostVirtual, c, 0, 0, 0)
		})
	}
}

// What an administrator chooses after the category was restored stays, also over a boot and a new network.
func TestCategoryOfAdministrator(t *testing.T) {
	withCategory(t, overlayKind, hns.Private, func(w *windows) {
		if _, _, err := w.prepared(5 * time.Minute); err != nil {
			w.t.Error(err)
		}
		w.bring(5 * time.Minute)
		w.mends(2 * time.Minute)
		w.category(hostVirtual, hns.Public)
		w.mends(3 * time.Minute) // which two looks need
		w.reboot()
		w.bring(5 * time.Minute)
		w.mends(5 * time.Minute)
		w.wantCategory(hostVirtual, hns.Public, 1, 1, 0)
		if n := w.log.Count("cause=category-changed"); n != 1 {
			t.Errorf("logged %d times", n)
		}
	})
}

// A public network that Windows has not identified for a moment is nobody's choice.
func TestCategoryUnidentified(t *testing.T) {
	withCategory(t, overlayKind, hns.Private, func(w *windows) {
		w.bring(5 * time.Minute)
		w.mends(2 * time.Minute)
		for range 5 {
			w.category(hostVirtual, hns.Public)
			w.mends(time.Minute) // for one look
			w.category(hostVirtual, hns.Private)
			w.mends(time.Minute + 10*time.Second)
		}
		if n := w.log.Count("cause=category-changed"); n != 0 {
			t.Errorf("logged %d times", n)
		}
	})
}

// A host without a static address may be in another network after a boot, which is public for a reason.
func TestCategoryOfMovedHost(t *testing.T) {
	withCategory(t, overlayKind, hns.Private, func(w *windows) {
		if err := w.m.Admin().Configure("Ethernet", hns.Persistent{DHCP: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // longer than the server takes
		w.local(hostconfig.Addresses(w.m.Admin().Adapter("Ethernet"))[0].Prefix)
		if _, _, err := w.prepared(5 * time.Minute); err != nil {
			w.t.Error(err)
		}
		w.bring(5 * time.Minute)
		w.mends(2 * time.Minute)
		w.wantCategory(hostVirtual, hns.Private, 1, 1, 0)
		w.rebootTo(hns.Public)
		w.bring(5 * time.Minute)
		w.mends(5 * time.Minute)
		w.wantCategory(hostVirtual, hns.Public, 1, 1, 0)
	})
}

// A service that fails or hangs delays nothing else, and is named once.
func TestCategoryUnknown(t *testing.T) {
	for _, fault := range []hnstest.Fault{{Func: "INetwork.GetCategory", Hang: true}, {Func: "INetwork.GetCategory", Code: hns.RPCServerUnavailable}} {
		withCategory(t, overlayKind, hns.Private, func(w *windows) {
			w.m.Fail(fault)
			w.bring(5 * time.Minute)
			w.mends(10 * time.Minute)
			w.wantCategory(hostVirtual, hns.Public, 0, 0, 1)
		})
		withCategory(t, overlayKind, hns.Private, func(w *windows) { // it fails after the category was saved
			fault.Skip = 1
			w.m.Fail(fault)
			w.bring(5 * time.Minute)
			w.mends(10 * time.Minute)
			w.wantCategory(hostVirtual, hns.Public, 0, 0, 2)
			journal, err := hostconfig.ReadJournal(w.opts.journalPath())
			if err != nil || journal.Category == nil || journal.Category.Problem == "" {
				w.t.Errorf("the journal has %+v, %v", journal.Category, err)
			}
		})
	}
	withCategory(t, overlayKind, hns.Private, func(w *windows) { // setting it fails for a while
		w.m.Fail(hnstest.Fault{Func: "INetwork.SetCategory", Code: hns.RPCServerUnavailable, Times: 3})
		w.bring(5 * time.Minute)
		w.mends(10 * time.Minute)
		if w.m.Admin().Category(hostVirtual) != hns.Private || w.log.Count("cause=category-lost") != 1 {
			w.t.Errorf("the category is %s, logged\n%s", w.m.Admin().Category(hostVirtual), w.log)
		}
	})
}
