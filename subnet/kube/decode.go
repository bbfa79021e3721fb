package kube

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Node has about 15 KB, of which we use a few hundred bytes. This file decodes only
// these from the Kubernetes protobuf encoding, so that time and memory do not depend on
// the images and conditions of a Node. It decodes a list Node by Node, so that memory
// does not depend on their number. The numbers after "case" are those of the fields in
// generated.proto of k8s.io/apimachinery and k8s.io/api/core/v1, which never change.
// BenchmarkDecodeNode compares this with the generated types, which take 29 MB instead of
// 1 MB for a list of 1,000 Nodes, and ten times as long.
//
// The API server's bytes are not trusted to be complete or right: every error is returned,
// and ends the list or the watch. Labels are not checked.

// magic is the beginning of every object. A runtime.Unknown (a message of apimachinery)
// follows, whose field 2 is the object.
var magic = []byte("k8s\x00")

// windowsLabel is the encoded label "kubernetes.io/os": "windows". Labels are compared
// with it without being decoded.
var windowsLabel = []byte("\x0a\x10kubernetes.io/os\x12\x07windows")

// hostnameLabel is the beginning of the encoded label "kubernetes.io/hostname". The
// length of its value follows in one byte, since it is at most 63, and then the value.
var hostnameLabel = []byte("\x0a\x16kubernetes.io/hostname\x12")

// maxObject bounds one object, in bytes. etcd accepts at most 1.5 MB.
const maxObject = 8 << 20

// errNotProtobuf is the error of an answer in another encoding, such as that of a proxy.
var errNotProtobuf = errors.New("the answer is not in the Kubernetes protobuf encoding")

// errUndecodable is the error of an event that was received, but cannot be decoded.
var errUndecodable = errors.New("cannot decode")

// errNoName is the error of a Node without a name, which only a BOOKMARK may have.
var errNoName = errors.New("a Node without a name")

// fields calls f for every length-delimited field (strings, bytes, messages) of a
// message, and skips the others. It returns the first error. The values are parts of b.
func fields(b []byte, f func(number protowire.Number, value []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := f(number, value); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// field returns the last value of one field of a message; nil: there is none.
func field(b []byte, wanted protowire.Number) (value []byte, err error) {
	err = fields(b, func(number protowire.Number, v []byte) error {
		if number == wanted {
			value = v
		}
		return nil
	})
	return value, err
}

// unwrap returns the object in a runtime.Unknown that begins with magic.
func unwrap(b []byte) (object []byte, err error) {
	b, ok := bytes.CutPrefix(b, magic)
	if !ok {
		return nil, errNotProtobuf
	}
	return field(b, 2)
}

// parseNode decodes a Node, or a PartialObjectMetadata, which has only the first field
// of a Node: then HasSpec stays false. The result does not refer to b, which the caller
// reuses. prefix is that of our annotations.
func parseNode(b []byte, prefix string) (*storedNode, error) {
	n := &storedNode{}
	podCIDR := ""
	err := fields(b, func(number protowire.Number, value []byte) error {
		switch number {
		case 1: // metadata
			return n.parseMeta(value, prefix)
		case 2: // spec
			n.HasSpec = true
			return fields(value, func(number protowire.Number, value []byte) error {
				switch number {
				case 1: // podCIDR
					podCIDR = string(value)
				case 7: // one of podCIDRs
					n.CIDRs = append(n.CIDRs, string(value))
				}
				return nil
			})
		}
		return nil
	})
	if len(n.CIDRs) == 0 && podCIDR != "" {
		n.CIDRs = []string{podCIDR}
	}
	if err == nil && n.Name == "" {
		err = errNoName
	}
	return n, err
}

// parseMeta parses a Node's metadata. prefix is that of our annotations; others are skipped.
func (n *storedNode) parseMeta(b []byte, prefix string) error {
	return fields(b, func(number protowire.Number, value []byte) error {
		switch number {
		case 1: // name
			n.Name = string(value)
		case 5: // uid
			n.UID = string(value)
		case 6: // resourceVersion
			n.Version = string(value)
		case 8: // creationTimestamp
			var created metav1.Timestamp
			err := created.Unmarshal(value)
			n.Created = created.Seconds
			return err
		case 11: // one of the labels
			n.Windows = n.Windows || bytes.Equal(value, windowsLabel)
			if host, found := bytes.CutPrefix(value, hostnameLabel); found && len(host) > 1 {
				n.setHostname(host[1:])
			}
		case 12: // one of the annotations
			key, err := field(value, 1)
			if err != nil || !bytes.HasPrefix(key, []byte(prefix)) {
				return err
			}
			text, err := field(value, 2)
			n.Annotations.set(prefix, string(key), string(text))
			return err
		}
		return nil
	})
}

// setHostname sets Hostname. It shares the memory of Name, which is usually equal and
// comes first in an object.
func (n *storedNode) setHostname(label []byte) {
	if n.Hostname = n.Name; string(label) != n.Name {
		n.Hostname = string(label)
	}
}

// watchReader decodes a list (items) or a watch (Event). One goroutine uses it.
type watchReader struct {
	*bufio.Reader
	buf []byte // for next
}

// newWatchReader returns a watchReader that reads from r.
func newWatchReader(r io.Reader) *watchReader {
	return &watchReader{Reader: bufio.NewReaderSize(r, 64<<10)}
}

// next returns the next n bytes. They are valid until the next call. If the stream ends before or within
// these bytes, the error is io.ErrUnexpectedEOF.
func (r *watchReader) next(n uint64) ([]byte, error) {
	if n > maxObject {
		return nil, fmt.Errorf("%w: an object of %d bytes is longer than %d", errUndecodable, n, maxObject)
	}
	if uint64(cap(r.buf)) < n {
		r.buf = make([]byte, n)
	}
	_, err := io.ReadFull(r, r.buf[:n])
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return r.buf[:n], err
}

// tag reads the number and the length of a field, whose bytes the caller reads by next.
// The error is io.EOF at the end of the stream. For a varint, which no list needs, it
// skips the value and returns zeros.
func (r *watchReader) tag() (protowire.Number, uint64, error) {
	tag, err := binary.ReadUvarint(r)
	if err != nil {
		return 0, 0, err
	}
	number, kind := protowire.DecodeTag(tag)
	value, err := binary.ReadUvarint(r)
	if err == io.EOF { // the stream ends within a field
		err = io.ErrUnexpectedEOF
	}
	if kind == protowire.VarintType {
		return 0, 0, err
	}
	if err == nil && kind != protowire.BytesType {
		err = errNotProtobuf
	}
	return number, value, err
}

// parseList decodes a NodeList and calls each for every Node. It returns the list's
// resourceVersion.
func parseList(from io.Reader, prefix string, each func(*storedNode)) (version string, err error) {
	r := newWatchReader(from)
	head, err := r.next(uint64(len(magic)))
	if err == nil && !bytes.Equal(head, magic) {
		err = errNotProtobuf
	}
	if err != nil {
		return "", fmt.Errorf("read the list: %w", err)
	}
	for {
		number, length, err := r.tag()
		switch {
		case err != nil: // also io.EOF: a list must have field 2; returned below
		case number == 2: // the object, a NodeList
			if version, err = r.items(length, prefix, each); err == nil {
				return version, nil
			}
		default:
			_, err = r.next(length)
		}
		if err != nil {
			return "", fmt.Errorf("read the list: %w", err)
		}
	}
}

// items decodes the NodeList inside of the runtime.Unknown, which has length bytes. It returns the list's resourceVersion.
func (r *watchReader) items(length uint64, prefix string, each func(*storedNode)) (version string, err error) {
	limited := &io.LimitedReader{R: r, N: int64(length)} //nolint:gosec // no stream is that long
	in := newWatchReader(limited)                        // reads ahead within the object: nothing behind it is needed
	for {
		number, length, err := in.tag()
		if err == io.EOF {
			// A stream that ends between two Nodes is an error. As a short list,
			// it would remove the other peers.
			if limited.N > 0 {
				return "", fmt.Errorf("%d bytes are missing: %w", limited.N, io.ErrUnexpectedEOF)
			}
			// So is an answer that is not a list. As an empty list, it would
			// remove all peers.
			if version == "" {
				return "", errors.New("no resourceVersion")
			}
			return version, nil
		}
		if err != nil {
			return "", err
		}
		value, err := in.next(length)
		if err != nil {
			return "", err
		}
		switch number {
		case 1: // metadata
			value, err = field(value, 2) // resourceVersion
			version = string(value)
		case 2: // one of the items
			var n *storedNode
			if n, err = parseNode(value, prefix); err == nil {
				each(n)
			}
		}
		if err != nil {
			return "", err
		}
	}
}

// watchEvent is an event of a watch.
type watchEvent struct {
	Kind   string         // ADDED, MODIFIED, DELETED, BOOKMARK, ERROR
	Node   *storedNode    // nil for an ERROR
	Status *metav1.Status // only for an ERROR
}

// Event reads the next event: its length in four bytes, and a WatchEvent. The error is io.EOF only if the stream has
// ended before it, as it does when the API server ends the watch, and errUndecodable only if the event cannot be decoded.
func (r *watchReader) Event(prefix string) (e watchEvent, err error) {
	if _, err := r.Peek(1); err != nil {
		return e, err
	}
	head, err := r.next(4)
	if err != nil {
		return e, err
	}
	frame, err := r.next(uint64(binary.BigEndian.Uint32(head)))
	if err != nil {
		return e, err
	}
	if e, err = parseEvent(frame, prefix); err != nil {
		err = fmt.Errorf("%w an event: %w", errUndecodable, err)
	}
	return e, err
}

// parseEvent decodes a WatchEvent.
func parseEvent(b []byte, prefix string) (e watchEvent, err error) {
	var object []byte
	err = fields(b, func(number protowire.Number, value []byte) error {
		switch number {
		case 1: // type
			e.Kind = string(value)
		case 2: // object, a RawExtension, whose field 1 has the bytes
			raw, err := field(value, 1)
			if err == nil {
				object, err = unwrap(raw)
			}
			return err
		}
		return nil
	})
	if err == nil && (e.Kind == "" || object == nil) {
		err = errors.New("an event without a type or an object")
	}
	if err != nil {
		return e, err
	}
	if e.Kind == "ERROR" {
		e.Status = &metav1.Status{}
		return e, e.Status.Unmarshal(object)
	}
	if e.Node, err = parseNode(object, prefix); err == errNoName && e.Kind == "BOOKMARK" {
		err = nil
	}
	return e, err
}
