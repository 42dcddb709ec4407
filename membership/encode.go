package membership

import (
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"strings"

	"github.com/hashicorp/memberlist"

	"github.com/quorate/quorate/internal/fault"
)

// factsVersion is the version of the encoding of Facts. The version is the first byte of the encoding. The fields
// follow in ascending order of their tags, without the empty ones. Each field has a tag of one byte, a length as a
// uvarint, and a value. A reader skips unknown tags, so new fields do not need a new version.
const factsVersion = 1

// Tags of the fields. A tag is never reused.
const (
	tagRole       = 1
	tagDisk       = 2 // server id without the node id
	tagPeerAddr   = 3
	tagClusterID  = 4
	tagPartitions = 5
	tagExpect     = 6
	tagNewest     = 7
	tagLeads      = 8
	tagFlags      = 9
	tagVersion    = 10
	tagEpoch      = 11
	tagFormat     = 12
	tagMetrics    = 13 // the port alone if the host is that of the peer address
	tagVoters     = 14
)

const (
	flagDiskSlow = 1 << iota
	flagDiskLow
)

// maxClusterID is the maximum length of a cluster id in bytes.
const maxClusterID = 32

// encode returns the encoded facts without node id and boot id, which form the gossip name.
func (f *Facts) encode() []byte {
	var flags uint64
	if f.DiskSlow {
		flags |= flagDiskSlow
	}
	if f.DiskLow {
		flags |= flagDiskLow
	}
	b := []byte{factsVersion}
	b = appendNumber(b, tagRole, uint64(f.Role))
	b = appendText(b, tagDisk, f.disk())
	b = appendText(b, tagPeerAddr, f.PeerAddr)
	b = appendText(b, tagClusterID, f.ClusterID)
	b = appendNumber(b, tagPartitions, uint64(f.Partitions))
	b = appendNumber(b, tagExpect, uint64(f.BootstrapExpect))
	b = appendNumber(b, tagNewest, uint64(f.NewestFormat))
	b = appendNumber(b, tagLeads, uint64(f.Leads))
	b = appendNumber(b, tagFlags, flags)
	b = appendText(b, tagVersion, f.Version)
	b = appendNumber(b, tagEpoch, uint64(f.Epoch))
	b = appendNumber(b, tagFormat, uint64(f.Format))
	b = appendText(b, tagMetrics, f.shortMetrics())
	return appendNumber(b, tagVoters, uint64(f.Voters))
}

// shortMetrics returns the metrics address in its shortest form, because space in gossip is scarce. If the metrics
// address and the peer address have the same host, the short form is only the port.
func (f *Facts) shortMetrics() string {
	_, port, err := net.SplitHostPort(f.MetricsAddr)
	if err != nil || f.longMetrics(port) != f.MetricsAddr {
		return f.MetricsAddr
	}
	return port
}

// longMetrics reverses shortMetrics.
func (f *Facts) longMetrics(short string) string {
	if short == "" || strings.Contains(short, ":") {
		return short
	}
	return net.JoinHostPort(f.peerHost(), short)
}

func (f *Facts) peerHost() string {
	host, _, _ := net.SplitHostPort(f.PeerAddr) // check has validated it
	return host
}

func appendText(b []byte, tag byte, s string) []byte {
	if s == "" {
		return b
	}
	b = binary.AppendUvarint(append(b, tag), uint64(len(s)))
	return append(b, s...)
}

func appendNumber(b []byte, tag byte, n uint64) []byte {
	if n == 0 {
		return b
	}
	return appendText(b, tag, string(binary.AppendUvarint(nil, n)))
}

// decodeFacts decodes the facts of a node from its gossip name and the encoded facts in meta. It returns
// fault.Unimplemented if the encoding cannot be read or a fact is invalid.
func decodeFacts(name string, meta []byte) (Facts, error) {
	f := Facts{}
	f.NodeID, f.BootID, _ = strings.Cut(name, "/")
	if len(meta) == 0 || meta[0] != factsVersion {
		return f, unreadable(name, "they have a form this version does not know",
			"run versions that are at most one apart")
	}
	if len(meta) > memberlist.MetaMaxSize {
		return f, unreadable(name, fmt.Sprintf("they have %d bytes", len(meta)), "")
	}
	last := 0
	for b := meta[1:]; len(b) > 0; {
		tag := int(b[0])
		value, rest, ok := cutField(b[1:])
		if !ok || tag <= last || !f.set(byte(tag), value) {
			return f, unreadable(name, fmt.Sprintf("field %d is damaged", tag), "")
		}
		b, last = rest, tag
	}
	f.MetricsAddr = f.longMetrics(f.MetricsAddr)
	if err := f.check(); err != nil {
		return f, unreadable(name, fault.Text(err), "")
	}
	return f, nil
}

func unreadable(name, why, hint string) error {
	return &fault.Error{Code: fault.Unimplemented, Op: "membership.Facts",
		Msg: fmt.Sprintf("the facts of node %.150q cannot be read: %s", name, why), Hint: hint}
}

// cutField reads a uvarint length and that many bytes from the front of b.
func cutField(b []byte) (value, rest []byte, ok bool) {
	n, used := binary.Uvarint(b)
	if used <= 0 || n > uint64(len(b)-used) {
		return nil, nil, false
	}
	b = b[used:]
	return b[:n], b[n:], true
}

// set stores one field. It returns false if the value is invalid, and ignores unknown tags.
func (f *Facts) set(tag byte, value []byte) bool {
	if text := f.text(tag); text != nil {
		*text = string(value)
		if tag == tagDisk {
			f.ServerID = f.NodeID + "." + f.ServerID
		}
		return len(value) > 0
	}
	n, used := binary.Uvarint(value)
	if !known(tag) {
		return true
	}
	if used != len(value) || n == 0 || n > math.MaxUint32 {
		return false
	}
	return f.setNumber(tag, n)
}

func known(tag byte) bool { return tag >= tagRole && tag <= tagVoters }

// text returns a pointer to the text field of f with the given tag, or nil if no text field has this tag.
func (f *Facts) text(tag byte) *string {
	switch tag {
	case tagDisk:
		return &f.ServerID
	case tagPeerAddr:
		return &f.PeerAddr
	case tagClusterID:
		return &f.ClusterID
	case tagVersion:
		return &f.Version
	case tagMetrics:
		return &f.MetricsAddr
	default:
		return nil
	}
}

func (f *Facts) setNumber(tag byte, n uint64) bool {
	switch tag {
	case tagRole:
		f.Role = Role(n)
		return n <= math.MaxUint8
	case tagPartitions:
		f.Partitions = uint32(n)
	case tagExpect:
		f.BootstrapExpect = uint32(n)
	case tagNewest:
		f.NewestFormat = uint32(n)
	case tagLeads:
		f.Leads = uint32(n)
	case tagEpoch:
		f.Epoch = uint32(n)
	case tagFormat:
		f.Format = uint32(n)
	case tagVoters:
		f.Voters = uint32(n)
	case tagFlags:
		f.DiskSlow, f.DiskLow = n&flagDiskSlow != 0, n&flagDiskLow != 0
	}
	return true
}
