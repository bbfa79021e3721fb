package charon

import (
	"cmp"
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"flannel/pkg/conf"
)

// Connection is how this node and a peer encrypt the packets between their subnets. Words of
// strongSwan: a connection (of IKE) has children, here one, whose security association (SA)
// has the keys of ESP. The driver writes the policies, which send packets into ESP.
type Connection struct {
	Name, Child       string       // of the connection, and of its security association
	Local, Remote     netip.Addr   // between which IKE and ESP are sent
	LocalID, RemoteID netip.Addr   // which the secret belongs to; they differ from the addresses behind NAT
	LocalNet          netip.Prefix // this node's subnet
	RemoteNet         netip.Prefix // the peer's
	Proposal          string       // for ESP
	UDPEncap          bool         // ESP in UDP, even if there is no NAT
	ReqID             int          // connects the security associations with the policies
}

// ikeProposal is flannel's, and constant.
const ikeProposal = "aes256-sha256-modp4096"

// How often a silent peer is probed; and how long a key of ESP is used, as with flannel.
const (
	probeInterval = 30 * time.Second
	rekeyAfter    = time.Hour
)

// message returns the connection in the form of load-conn; swanctl.conf(5) describes the keys.
// charon installs no policies, and never starts or restarts a connection by itself, since the
// caller does that. It repeats a negotiation for ever (keyingtries). It keeps several
// associations with a peer (unique): a peer that starts anew first makes new ones, and the
// kernel takes the latest.
func (c Connection) message() message {
	end := func(id netip.Addr) message { return message{{"auth", "psk"}, {"id", id.String()}} }
	return message{{c.Name, message{
		{"version", "2"},
		{"local_addrs", []string{c.Local.String()}},
		{"remote_addrs", []string{c.Remote.String()}},
		{"proposals", []string{ikeProposal}},
		{"encap", yesNo(c.UDPEncap)},
		{"mobike", "no"},
		{"unique", "never"},
		{"keyingtries", "0"},
		{"dpd_delay", seconds(probeInterval)},
		{"local", end(c.LocalID)},
		{"remote", end(c.RemoteID)},
		{"children", message{{c.Child, message{
			{"mode", "tunnel"},
			{"reqid", strconv.Itoa(c.ReqID)},
			{"local_ts", []string{c.LocalNet.String()}},
			{"remote_ts", []string{c.RemoteNet.String()}},
			{"esp_proposals", []string{c.Proposal}},
			{"rekey_time", seconds(rekeyAfter)},
			{"start_action", "none"},
			{"close_action", "none"},
			{"dpd_action", "clear"},
			{"policies", "no"},
		}}}},
	}}}
}

// yesNo and seconds return values as charon's configuration has them.
func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d/time.Second)) + "s" }

// Load adds or replaces a connection and its secret, which has the connection's name. Security
// associations that exist stay. Errors do not contain the secret. If charon refuses load-conn, nothing has
// changed. After any other error, charon may have the former connection or the new one, and either secret.
func (c *Client) Load(conn Connection, secret conf.Secret) error {
	_, err := c.call("load-conn", conn.message())
	if err == nil {
		_, err = c.call("load-shared", message{{"id", conn.Name}, {"type", "IKE"}, {"data", secret.Reveal()},
			{"owners", []string{conn.LocalID.String(), conn.RemoteID.String()}}})
	}
	return err
}

// Unload removes a connection with its secret and its security associations, as far as
// they exist: a Refusal means that there is none. The peer is notified, but its answer is not
// waited for.
func (c *Client) Unload(name string) error {
	for _, request := range []struct {
		command string
		m       message
	}{
		{"unload-conn", message{{"name", name}}},
		{"unload-shared", message{{"id", name}}},
	} {
		if _, err := c.call(request.command, request.m); err != nil && !isRefusal(err) {
			return err
		}
	}
	return c.terminate("ike", name)
}

// Terminate removes the security associations for which match reports true, without waiting for
// the peer (force, and the timeout -1).
func (c *Client) Terminate(match func(SA) bool) error {
	sas, err := c.SAs()
	for _, sa := range sas {
		if err == nil && match(sa) {
			err = c.terminate("ike-id", sa.id)
		}
	}
	return err
}

// terminate removes the security associations, as far as they exist, whose property key has this value.
func (c *Client) terminate(key, value string) error {
	_, err := c.call("terminate", message{{key, value}, {"force", "yes"}, {"timeout", "-1"}})
	if isRefusal(err) {
		return nil // there are none
	}
	return err
}

// isRefusal reports whether charon answered that it did not carry out a command.
func isRefusal(err error) bool {
	_, is := errors.AsType[*Refusal](err)
	return is
}

// Initiate begins to negotiate the security associations of a connection, and does not
// wait for the result (timeout -1), which SAs and Watch show. init-limits: charon's limits for
// half-open negotiations do not apply.
func (c *Client) Initiate(name, child string) error {
	_, err := c.call("initiate", message{{"ike", name}, {"child", child}, {"timeout", "-1"}, {"init-limits", "no"}})
	return err
}

// Rekey begins to replace the ESP security associations of a connection.
func (c *Client) Rekey(name, child string) error {
	_, err := c.call("rekey", message{{"ike", name}, {"child", child}})
	return err
}

// Connections returns the names of the connections that were loaded, by anybody.
func (c *Client) Connections() ([]string, error) {
	answer, err := c.call("get-conns", nil)
	return answer.list("conns"), err
}

// Secrets returns the names of the secrets that were loaded, by anybody.
func (c *Client) Secrets() ([]string, error) {
	answer, err := c.call("get-shared", nil)
	return answer.list("keys"), err
}

// Version returns the version of strongSwan.
func (c *Client) Version() (string, error) {
	answer, err := c.call("version", nil)
	return answer.text("version"), err
}

// unnamed is charon's name of a security association whose peer has not yet said who it is, by which charon
// chooses the connection. How the two encapsulate ESP has been decided before that.
const unnamed = "(unnamed)"

// SA is an IKE security association.
type SA struct {
	id     string // charon's number
	Name   string // of its connection; "": see unnamed
	State  string // "CONNECTING", "ESTABLISHED", …
	Busy   bool   // tasks, such as a negotiation, are under way or queued
	Remote netip.AddrPort
	Since  time.Duration // for how long it has been established
	Pairs  []Pair
}

// Pair are the two ESP security associations, one for each direction, of a CHILD_SA.
type Pair struct {
	State          string // "INSTALLED", "REKEYING", …
	Child          string // Connection.Child of when they, or those that they replace, were negotiated
	UDPEncap       bool   // in UDP
	In, Out        uint32 // SPIs
	Received, Sent int64  // bytes
}

// SAs returns all security associations, also those of connections that others have loaded.
func (c *Client) SAs() ([]SA, error) {
	var all []SA
	err := c.stream("list-sas", "list-sa", nil, func(m message) {
		for _, f := range m {
			if section, ok := f.Value.(message); ok {
				all = append(all, parseSA(f.Name, section))
			}
		}
	})
	return all, err
}

// parseSA returns a security association of an answer; name is that of its connection.
func parseSA(name string, m message) SA {
	sa := SA{id: m.text("uniqueid"), Name: name, State: m.text("state"), Busy: len(m.list("tasks-active"))+len(m.list("tasks-queued")) > 0,
		Since: time.Duration(number(m.text("established"), 10)) * time.Second}
	if name == unnamed {
		sa.Name = ""
	}
	if ip, err := netip.ParseAddr(m.text("remote-host")); err == nil {
		sa.Remote = netip.AddrPortFrom(ip, uint16(number(m.text("remote-port"), 10)))
	}
	for _, f := range m.section("child-sas") {
		child, _ := f.Value.(message)
		sa.Pairs = append(sa.Pairs, Pair{State: child.text("state"), Child: cmp.Or(child.text("name"), f.Name), UDPEncap: child.text("encap") == "yes",
			In: uint32(number(child.text("spi-in"), 16)), Out: uint32(number(child.text("spi-out"), 16)),
			Received: number(child.text("bytes-in"), 10), Sent: number(child.text("bytes-out"), 10)})
	}
	return sa
}

// number parses a number with this base, which may begin with "0x"; 0 for what is none.
func number(text string, base int) int64 {
	n, _ := strconv.ParseInt(strings.TrimPrefix(text, "0x"), base, 64)
	return n
}
