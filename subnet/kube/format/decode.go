package format

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

// Of a Node of 15 KB we want a few hundred bytes. This file reads these from Kubernetes' protobuf and passes over the
// rest, so that neither time nor memory depend on how many images a node has; a list is read piece by piece, so that
// memory does not depend on how many nodes there are. The numbers are those of the fields in generated.proto of
// k8s.io/apimachinery and k8s.io/api/core/v1, which never change. BenchmarkReadANode compares this with the generated
// types: these take 29 MB for a list of 1,000 Nodes instead of 1 MB, and ten times as long.

// magic begins every object; what follows is a runtime.Unknown, with the object in its field 2.
var magic = []byte("k8s\x00")

// windowsLabel is the entry "kubernetes.io/os": "windows" as it is written, so that no other is taken apart.
var windowsLabel = []byte("\x0a\x10kubernetes.io/os\x12\x07windows")

// hostnameLabel begins the entry "kubernetes.io/hostname"; its value, of at most 63 bytes, follows after their number.
var hostnameLabel = []byte("\x0a\x16kubernetes.io/hostname\x12")

// maxObject bounds one object, in bytes: etcd takes no more than 1.5 MB.
const maxObject = 8 << 20

var errNotProtobuf = errors.New("the answer is not Kubernetes' protobuf")

// fields calls f for every field that has bytes; it returns the first error.
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

// Unwrap returns the object inside of a runtime.Unknown.
func Unwrap(b []byte) (object []byte, err error) {
	b, ok := bytes.CutPrefix(b, magic)
	if !ok {
		return nil, errNotProtobuf
	}
	err = fields(b, func(number protowire.Number, value []byte) error {
		if number == 2 {
			object = value
		}
		return nil
	})
	return object, err
}

// ParseNode reads a Node, or its PartialObjectMetadata, which differs only in having no more than the first field.
// Nothing of b is kept.
func ParseNode(b []byte, prefix string) (*Node, error) {
	n := &Node{}
	podCIDR := ""
	err := fields(b, func(number protowire.Number, value []byte) error {
		switch number {
		case 1: // metadata
			return n.parseMeta(value, prefix)
		case 2: // spec
			n.Whole = true
			return fields(value, func(number protowire.Number, value []byte) error {
				switch number {
				case 1:
					podCIDR = string(value)
				case 7:
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
	return n, err
}

func (n *Node) parseMeta(b []byte, prefix string) error {
	return fields(b, func(number protowire.Number, value []byte) error {
		switch number {
		case 1:
			n.Name = string(value)
		case 5:
			n.UID = string(value)
		case 6:
			n.Version = string(value)
		case 8: // creationTimestamp, whose first field is seconds; a negative one is never in use
			if _, _, size := protowire.ConsumeTag(value); size > 0 {
				seconds, _ := protowire.ConsumeVarint(value[size:])
				n.Created = int64(seconds) //nolint:gosec // whatever it is, it is the same on every node
			}
		case 11: // an entry of labels
			n.Windows = n.Windows || bytes.Equal(value, windowsLabel)
			if host, is := bytes.CutPrefix(value, hostnameLabel); is && len(host) > 1 {
				n.setHostname(host[1:])
			}
		case 12: // an entry of annotations
			var key, text []byte
			err := fields(value, func(number protowire.Number, value []byte) error {
				switch number {
				case 1:
					key = value
				case 2:
					text = value
				}
				return nil
			})
			if bytes.HasPrefix(key, []byte(prefix)) {
				n.Notes.set(prefix, string(key), string(text))
			}
			return err
		}
		return nil
	})
}

// setHostname keeps no second copy of the name, which it nearly always is.
func (n *Node) setHostname(label []byte) {
	if n.Hostname = n.Name; string(label) != n.Name {
		n.Hostname = string(label)
	}
}

// Reader takes a stream apart.
type Reader struct {
	*bufio.Reader
	buf []byte // of the last piece; the next one overwrites it
}

// NewReader reads a watch from r.
func NewReader(r io.Reader) *Reader { return &Reader{Reader: bufio.NewReaderSize(r, 64<<10)} }

func (r *Reader) piece(n uint64) ([]byte, error) {
	if n > maxObject {
		return nil, fmt.Errorf("an object of %d bytes", n)
	}
	if uint64(cap(r.buf)) < n {
		r.buf = make([]byte, n)
	}
	_, err := io.ReadFull(r, r.buf[:n])
	return r.buf[:n], err
}

// tag reads the head of a field; the end of the stream is io.EOF.
func (r *Reader) tag() (protowire.Number, uint64, error) {
	tag, err := binary.ReadUvarint(r)
	if err != nil {
		return 0, 0, err
	}
	number, kind := protowire.DecodeTag(tag)
	value, err := binary.ReadUvarint(r)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if kind == protowire.VarintType {
		return 0, 0, err // no field of a list that we need is a number
	}
	if err == nil && kind != protowire.BytesType {
		err = errNotProtobuf
	}
	return number, value, err
}

// ParseList reads a NodeList from r and hands over one node after the other. It returns the list's resourceVersion.
func ParseList(from io.Reader, prefix string, each func(*Node)) (version string, err error) {
	r := NewReader(from)
	head, err := r.piece(uint64(len(magic)))
	if err != nil || !bytes.Equal(head, magic) {
		return "", errors.Join(errNotProtobuf, err)
	}
	for {
		number, length, err := r.tag()
		if err != nil {
			return "", fmt.Errorf("read the list: %w", err)
		}
		if number == 2 {
			return r.items(length, prefix, each)
		}
		if _, err := r.piece(length); err != nil {
			return "", fmt.Errorf("read the list: %w", err)
		}
	}
}

// items reads the NodeList itself, of that many bytes.
func (r *Reader) items(length uint64, prefix string, each func(*Node)) (version string, err error) {
	whole := io.LimitReader(r.Reader, int64(length)) //nolint:gosec // beyond that, the stream ends earlier
	in := NewReader(whole)
	for {
		number, length, err := in.tag()
		if err == io.EOF {
			// A stream that was cut off between two nodes must not be taken for a short list.
			if rest := whole.(*io.LimitedReader).N; rest > 0 {
				return "", fmt.Errorf("read the list: %d bytes are missing: %w", rest, io.ErrUnexpectedEOF)
			}
			// Nor must an answer that is no list: an empty one would cost every peer its path.
			if version == "" {
				return "", errors.New("read the list: it has no resourceVersion")
			}
			return version, nil
		}
		if err != nil {
			return "", fmt.Errorf("read the list: %w", err)
		}
		piece, err := in.piece(length)
		if err != nil {
			return "", fmt.Errorf("read the list: %w", err)
		}
		switch number {
		case 1: // metadata
			err = fields(piece, func(number protowire.Number, value []byte) error {
				if number == 2 {
					version = string(value)
				}
				return nil
			})
		case 2:
			var n *Node
			if n, err = ParseNode(piece, prefix); err == nil {
				each(n)
			}
		}
		if err != nil {
			return "", fmt.Errorf("read the list: %w", err)
		}
	}
}

// Event is a frame of a watch.
type Event struct {
	Kind   string // ADDED, MODIFIED, DELETED, BOOKMARK
	Node   *Node
	Status *metav1.Status // of an ERROR
}

// Event reads the next frame: four bytes of length, then a WatchEvent.
func (r *Reader) Event(prefix string) (e Event, err error) {
	head, err := r.piece(4)
	if err != nil {
		return e, err
	}
	frame, err := r.piece(uint64(binary.BigEndian.Uint32(head)))
	if err != nil {
		return e, err
	}
	var object []byte
	err = fields(frame, func(number protowire.Number, value []byte) error {
		switch number {
		case 1:
			e.Kind = string(value)
		case 2: // a RawExtension
			return fields(value, func(number protowire.Number, value []byte) (err error) {
				if number == 1 {
					object, err = Unwrap(value)
				}
				return err
			})
		}
		return nil
	})
	if err != nil {
		return e, fmt.Errorf("read the watch: %w", err)
	}
	if e.Kind == "ERROR" {
		e.Status = &metav1.Status{}
		return e, e.Status.Unmarshal(object)
	}
	e.Node, err = ParseNode(object, prefix)
	return e, err
}
