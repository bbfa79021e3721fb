package cniplugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// status reports whether ADD can be served: the subnet file is there, flanneld has not said that it never got the
// network up to date, and the delegate, if it knows STATUS, has no objection. Kubelet shows the error as the reason why
// pods wait.
func (p *Plugin) status(args *skel.CmdArgs) error {
	ctx := context.Background()
	c, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	subnet, err := readSubnet(c.SubnetFile)
	if err != nil {
		return notAvailable(err, whyNotReady(ctx, c.SubnetFile))
	}
	if reason := whyNotReady(ctx, c.SubnetFile); errors.As(reason, new(*neverReadyError)) {
		return &types.Error{Code: errLimitedConnectivity, Msg: reason.Error(), Details: "run 'flanneld status' on this node"}
	}
	d, err := newDelegate(c, subnet, p.OS)
	if err != nil {
		return err
	}
	return p.delegateStatus(ctx, d, args)
}

// notAvailable makes an error of why there is no subnet file that can be used.
func notAvailable(err, reason error) error {
	e := &types.Error{}
	if !errors.As(err, &e) {
		return err
	}
	e.Code = errNotAvailable
	if reason != nil {
		e.Msg += " (" + reason.Error() + ")"
	}
	return e
}

// delegateStatus asks a delegate that knows STATUS.
func (p *Plugin) delegateStatus(ctx context.Context, d delegate, args *skel.CmdArgs) error {
	call := p.newCall("STATUS", args)
	path, err := invoke.FindInPath(d.Type, filepath.SplitList(args.Path))
	if err != nil {
		return cniError(errNotAvailable, "delegate: %w", err)
	}
	known, err := call.versions(ctx, path)
	if err != nil {
		return cniError(errNotAvailable, "ask %s for its versions of CNI: %w", d.Type, err)
	}
	if !slices.Contains(known, d.version()) {
		return nil // one that knows no STATUS
	}
	_, err = call.run(ctx, d)
	return err
}

// neverReadyError says that a daemon runs, and has not got the network up to date since it began.
type neverReadyError struct{ reason string }

func (e *neverReadyError) Error() string { return "flanneld is not ready: " + e.reason }

// askLimit bounds how long the daemon is waited for: it answers from memory.
const askLimit = time.Second

// maxReason bounds what is read of the daemon's answer, in bytes.
const maxReason = 4 << 10

// whyNotReady asks flanneld, at the socket beside the subnet file. The error is a *neverReadyError, or says that nobody
// answers: another flannel's daemon has no such socket.
func whyNotReady(ctx context.Context, subnetFile string) error {
	socket := socketOf(subnetFile)
	conn, err := (&net.Dialer{Timeout: askLimit}).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("flanneld does not answer at %s", socket)
	}
	defer conn.Close() //nolint:errcheck // what was read counts
	_ = conn.SetDeadline(time.Now().Add(askLimit))
	if _, err := io.WriteString(conn, "GET /startupz HTTP/1.0\r\nHost: flanneld\r\n\r\n"); err != nil {
		return fmt.Errorf("ask flanneld: %w", err)
	}
	answer := bufio.NewReader(io.LimitReader(conn, maxReason))
	line, err := answer.ReadString('\n')
	if err != nil {
		return fmt.Errorf("ask flanneld: %w", err)
	}
	if _, status, _ := strings.Cut(line, " "); !strings.HasPrefix(status, "503 ") {
		return nil // up to date at least once, or of a version that cannot be asked
	}
	rest, _ := io.ReadAll(answer)
	_, body, _ := strings.Cut(string(rest), "\r\n\r\n")
	return &neverReadyError{strings.ReplaceAll(strings.TrimSpace(body), "\n", "; ")}
}

// socketOf is where a daemon with that subnet file is asked, as package status has it.
func socketOf(subnetFile string) string {
	dir, name := filepath.Split(subnetFile)
	if name == "subnet.env" {
		name = "flanneld"
	}
	return filepath.Join(dir, name+".sock")
}
