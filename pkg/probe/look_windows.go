package probe

import (
	"context"
	"fmt"
	"time"

	"flannel/pkg/hns"
)

func system(o Options) []probe {
	m, err := open(o.Each)
	if err != nil {
		return nil
	}
	return m.looks(o)
}

// open returns this machine. A call of HNS ends before the look that makes it, which can then say what hangs.
func open(each time.Duration) (machine, error) {
	calls, err := hns.Open()
	if err != nil {
		return machine{}, err
	}
	stack, err := hns.OpenStack()
	if err != nil {
		return machine{}, err
	}
	return machine{hns.NewClient(calls, hns.Timing{Query: each * 9 / 10}), stack, processes}, nil
}

// Documents are what the machine has as documents rather than as the output of a program: HNS's own, adapters and
// routes, by the name of a file. All of them together take no longer than each.
func Documents(ctx context.Context, each time.Duration) map[string][]byte {
	ctx, cancel := context.WithTimeout(ctx, each)
	defer cancel()
	m, err := open(each)
	if err != nil {
		return map[string][]byte{"hns.txt": []byte(err.Error())}
	}
	seen := make(chan map[string][]byte, 1)
	go func() { seen <- m.documents(ctx) }()
	select {
	case all := <-seen:
		return all
	case <-after(ctx):
		return map[string][]byte{"hns.txt": fmt.Appendf(nil, "to look at it took longer than %s\n", each)}
	}
}
