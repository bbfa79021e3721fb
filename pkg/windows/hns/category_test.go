package hns_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/hnstest"
	"flannel/pkg/windows/hns"
)

// A call that hangs is abandoned at the limit, and no other is made until it returns.
func TestCategoryAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := hnstest.New()
		defer m.Close() //nolint:errcheck // it counts handles, of which there are none
		guid := m.Admin().Adapter("Ethernet").GUID
		c := hns.NewCategoryClient(m, time.Minute)
		m.Fail(hnstest.Fault{Func: "INetwork.GetCategory", Hang: true})
		for range 3 {
			if _, err := c.Category(t.Context(), guid); !errors.Is(err, hns.ErrTimeout) {
				t.Errorf("a call that hangs: %v", err)
			}
		}
		m.Heal()
		synctest.Wait()
		if calls := len(m.Log()); calls != 1 {
			t.Errorf("%d calls were made", calls)
		}
		if err := c.SetCategory(t.Context(), guid, hns.Private); err != nil {
			t.Error(err)
		}
		if got, err := c.Category(t.Context(), guid); err != nil || got != hns.Private {
			t.Errorf("afterwards: %s, %v", got, err)
		}
	})
}
