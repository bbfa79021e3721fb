package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"

	"flannel/pkg/hns/hnstest"
)

// hnsMain runs a simulated Windows machine until it is told to stop, for programs under Wine, which find it by their
// environment (FLANNEL_HNS), and for hnstest.Dial. Its first line is the address where it listens. It is no command for
// people: the tests start it.
func hnsMain(ctx context.Context, args []string) (int, error) {
	f := flag.NewFlagSet("flannel-lab hns", flag.ContinueOnError)
	listen := f.String("listen", "127.0.0.1:0", "`address` for the DLLs and for hnstest.Dial")
	kernel := f.Bool("kernel", false, "play the machine in this network namespace, with real devices")
	knobs := f.String("knobs", "{}", "`JSON` of hnstest.Knobs")
	if err := f.Parse(args); err != nil {
		return 2, err
	}
	m := hnstest.New()
	if *kernel {
		var err error
		if m, err = hnstest.NewKernel(); err != nil {
			return 1, err
		}
	}
	defer m.Close()
	var err error
	if m.Turn(func(k *hnstest.Knobs) { err = json.Unmarshal([]byte(*knobs), k) }); err != nil {
		return 2, fmt.Errorf("knobs: %w", err)
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return 1, err
	}
	defer l.Close()
	context.AfterFunc(ctx, func() { l.Close() })
	fmt.Println(l.Addr())
	return 0, m.Serve(l)
}
