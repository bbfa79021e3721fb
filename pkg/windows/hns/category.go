package hns

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Category says how far Windows trusts a network; the profile of the Windows Firewall depends on it. The values are those
// of NLM_NETWORK_CATEGORY.
type Category int

// Categories of networks. Only Windows sets Domain: it does so when a domain controller has authenticated the machine.
const (
	Public Category = iota
	Private
	Domain
)

// String returns the name that Get-NetConnectionProfile prints.
func (c Category) String() string {
	switch c {
	case Public:
		return "Public"
	case Private:
		return "Private"
	case Domain:
		return "DomainAuthenticated"
	}
	return fmt.Sprintf("category %d", int(c))
}

// Categories reads and sets the category of the network to which an adapter is connected. Its calls may hang, such as when
// the Network List Service is starting: use CategoryClient.
type Categories interface {
	// Category returns ErrNotFound if the adapter is not connected to a network, or if Windows has not identified it yet.
	Category(adapterGUID string) (Category, error)
	// SetCategory sets Public or Private, at once and for later boots. AccessDenied means that a group policy forbids it.
	SetCategory(adapterGUID string, c Category) error
}

// CategoryClient calls Categories. No method takes longer than the limit.
type CategoryClient struct {
	calls Categories
	limit time.Duration
	busy  sync.Mutex // locked during a call: one that hangs occupies a thread
}

// NewCategoryClient returns a client. A call that takes longer than the limit is abandoned; until it returns, others fail.
func NewCategoryClient(calls Categories, limit time.Duration) *CategoryClient {
	return &CategoryClient{calls: calls, limit: limit}
}

// Category is that of Categories.
func (c *CategoryClient) Category(ctx context.Context, adapterGUID string) (Category, error) {
	return c.call(ctx, func() (Category, error) { return c.calls.Category(adapterGUID) })
}

// SetCategory is that of Categories.
func (c *CategoryClient) SetCategory(ctx context.Context, adapterGUID string, to Category) error {
	_, err := c.call(ctx, func() (Category, error) { return to, c.calls.SetCategory(adapterGUID, to) })
	return err
}

func (c *CategoryClient) call(ctx context.Context, f func() (Category, error)) (Category, error) {
	if !c.busy.TryLock() {
		return 0, fmt.Errorf("%w: the Network List Service does not answer an earlier call", ErrTimeout)
	}
	return bounded(ctx, c.limit, func(context.Context) (Category, error) {
		defer c.busy.Unlock()
		return f()
	})
}
