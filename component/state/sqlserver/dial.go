package sqlserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/microsoft/go-mssqldb/integratedauth"
	"github.com/microsoft/go-mssqldb/msdsn"

	"github.com/quorate/quorate/internal/frames"
)

// Parts of the protocol TDS.
const (
	headerSize = 8 // bytes of the header of a packet

	packetAnswer   = 0x04
	packetLogin    = 0x10
	packetPrelogin = 0x12

	optionEncryption = 1
	optionToken      = 6 // whether SQL Server requires a token of Entra ID
	optionEnd        = 0xff

	encryptLogin  = 0 // SQL Server encrypts only the login
	encryptAll    = 1
	encryptNone   = 2
	encryptStrict = 4 // TLS begins before the prelogin
)

// dialer connects to SQL Server. Its connections check the messages of the server before the client library reads them.
// Otherwise a hostile server could exhaust the memory, because the library allocates as much memory as a message
// announces.
//
// A message can be checked only after decryption. Therefore the connection negotiates TLS itself, and the library uses
// the connection as if it had no TLS.
type dialer struct {
	client  msdsn.Config
	longest int64 // largest value, in bytes
	sspi    bool  // the sign-in uses NTLM
}

// check returns a dialer and the configuration that the library must use with it. The dialer negotiates TLS with the
// settings of config, so the returned configuration disables TLS. If unchecked(config) is true, the dialer is nil, and
// the library negotiates TLS. longest is the maximum size of a value in bytes.
func check(config msdsn.Config, longest int64) (msdsn.Config, mssql.Dialer) {
	config.ColumnEncryption = false // the store has no encrypted columns
	if unchecked(config) {
		return config, nil
	}
	d := &dialer{client: config, longest: longest, sspi: ntlm(config)}
	config.Encryption, config.TLSConfig = msdsn.EncryptionDisabled, nil
	return config, d
}

// unchecked reports whether the client library must negotiate TLS, so that the messages of the server are not checked.
// This is necessary if the sign-in uses NTLM with Extended Protection (EPA), which depends on the certificate.
func unchecked(config msdsn.Config) bool { return config.EpaEnabled && ntlm(config) }

// ntlm reports whether the sign-in uses NTLM.
func ntlm(config msdsn.Config) bool {
	auth, err := integratedauth.GetIntegratedAuthenticator(config)
	if err != nil || auth == nil {
		return false
	}
	auth.Free()
	return true
}

// HostName implements mssql.HostDialer, so that DialContext gets the name of the server.
func (d *dialer) HostName() string { return d.client.Host }

// DialContext implements mssql.Dialer.
func (d *dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if network != "tcp" { // SQL Server Browser, whose answers the library limits
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	at := d.client
	at.Host = host
	if at.Port, err = strconv.ParseUint(port, 10, 16); err != nil {
		return nil, err
	}
	tcp, ok := msdsn.ProtocolDialers["tcp"].(mssql.MssqlProtocolDialer)
	if !ok {
		return nil, errors.New("the client of SQL Server has no TCP")
	}
	raw, err := tcp.DialSqlConnection(ctx, nil, &at)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, dialer: d, host: host, wants: encryptLogin}
	switch d.client.Encryption {
	case msdsn.EncryptionRequired:
		c.wants = encryptAll
	case msdsn.EncryptionDisabled:
		c.wants = encryptNone
	case msdsn.EncryptionStrict:
		c.wants = encryptStrict
		if c.Conn, err = c.secured(ctx, raw, "tds/8.0"); err != nil {
			_ = raw.Close() // the error of the handshake is more useful
			return nil, err
		}
	}
	return c, nil
}

// conn is a connection to SQL Server. The first call of Read negotiates the encryption, and must not be concurrent with
// a call of Write. After that, one goroutine may read while another writes.
type conn struct {
	net.Conn // TCP, or TLS if TLS comes before the prelogin
	dialer   *dialer
	host     string
	wants    byte

	asked   bool
	checked net.Conn // connection after the negotiation
	answer  []byte   // unread bytes of the answer to the prelogin
	first   net.Conn // connection for the first packet after the negotiation; nil = checked
}

// Write implements net.Conn. The client library writes one packet at a time.
func (c *conn) Write(p []byte) (int, error) {
	switch {
	case c.checked == nil && !c.asked:
		c.asked = true
		p = c.prelogin(p)
	case c.checked == nil:
	case c.first != nil:
		first := c.first
		c.first = nil
		return first.Write(p)
	case c.wants == encryptStrict && len(p) >= 2*headerSize && p[0] == packetLogin:
		p = bytes.Clone(p)
		const version = 0x08000000 // TDS 8.0
		binary.LittleEndian.PutUint32(p[headerSize+4:], version)
		c.wants = encryptAll // only the first packet has the version
		return c.checked.Write(p)
	default:
		return c.checked.Write(p)
	}
	return c.Conn.Write(p)
}

// prelogin returns a copy of the client library's first packet. The copy requests the encryption that the settings
// require.
func (c *conn) prelogin(p []byte) []byte {
	p = bytes.Clone(p)
	if at, size := option(p[min(headerSize, len(p)):], optionEncryption); size == 1 {
		p[headerSize+at] = c.wants
	}
	return p
}

// option finds the value of an option in a prelogin message. It returns the position and the size of the value. The
// size is 0 if the message does not have the option.
func option(p []byte, kind byte) (position, size int) {
	for i := 0; i+5 <= len(p) && p[i] != optionEnd; i += 5 {
		if p[i] != kind {
			continue
		}
		position, size = int(binary.BigEndian.Uint16(p[i+1:])), int(binary.BigEndian.Uint16(p[i+3:]))
		if position+size > len(p) {
			break
		}
		return position, size
	}
	return 0, 0
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	if c.checked == nil {
		if err := c.negotiate(); err != nil {
			return 0, err
		}
	}
	if len(c.answer) > 0 {
		n := copy(p, c.answer)
		c.answer = c.answer[n:]
		return n, nil
	}
	return c.checked.Read(p)
}

// negotiate reads the answer to the prelogin. It then does the TLS handshake, if the settings or the answer require
// one.
func (c *conn) negotiate() error {
	p, err := preloginAnswer(c.Conn)
	if err != nil {
		return err
	}
	at, size := option(p, optionEncryption)
	if size == 0 {
		return errors.New("the answer to the prelogin does not say whether SQL Server encrypts")
	}
	secured, encrypts := c.Conn, p[at]
	switch {
	case c.wants == encryptStrict, c.wants != encryptAll && encrypts == encryptNone:
	case c.wants == encryptAll && (encrypts == encryptNone || encrypts == encryptLogin):
		return errors.New("TLS Handshake failed: SQL Server does not support encryption")
	default:
		if secured, err = c.wrapped(); err != nil {
			return err
		}
		if encrypts == encryptLogin {
			c.first, secured = secured, c.Conn
		}
	}
	c.checked = frames.Wrap(secured, frames.NewTDS(c.dialer.longest, c.dialer.sspi))
	c.answer = encryptsNothing(p)
	return nil
}

// preloginAnswer reads the answer to the prelogin.
func preloginAnswer(in io.Reader) ([]byte, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(in, header[:]); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint16(header[2:]))
	if header[0] != packetAnswer || header[1] == 0 || size < headerSize {
		return nil, errors.New("the server does not answer the prelogin as SQL Server does")
	}
	p := make([]byte, size-headerSize)
	_, err := io.ReadFull(in, p)
	return p, err
}

// encryptsNothing returns an answer to the prelogin that replaces the server's answer p. The new answer reports that
// the connection is not encrypted, so that the client library does not negotiate TLS. Of the options in p, the new
// answer keeps only one: whether SQL Server requires a token.
func encryptsNothing(p []byte) []byte {
	options, values := []byte{optionEncryption, 0, 0, 0, 1}, []byte{encryptNone}
	if at, size := option(p, optionToken); size == 1 {
		options, values = append(options, optionToken, 0, 0, 0, 1), append(values, p[at])
	}
	for i := range values { // the values follow the options
		options[5*i+2] = byte(len(options) + 1 + i) //nolint:gosec // at most 12
	}
	body := append(append(options, optionEnd), values...)
	return append([]byte{packetAnswer, 1, 0, byte(headerSize + len(body)), 0, 0, 1, 0}, body...) //nolint:gosec // small
}

// wrapped returns a TLS connection whose handshake is wrapped in packets.
func (c *conn) wrapped() (net.Conn, error) {
	h := &handshake{Conn: c.Conn}
	secured, err := c.secured(context.Background(), h, "") // the library sets a deadline
	if err == nil {
		err = h.end()
	}
	if err != nil {
		return nil, err
	}
	return secured, nil
}

// secured returns a TLS connection over raw.
func (c *conn) secured(ctx context.Context, raw net.Conn, protocol string) (net.Conn, error) {
	config := c.dialer.client.TLSConfig
	if config == nil { // the settings request no encryption, but the server does
		var err error
		if config, err = msdsn.SetupTLS("", "", false, c.host, ""); err != nil {
			return nil, err
		}
	}
	config = config.Clone()
	if c.host != c.dialer.client.Host && !c.dialer.client.HostInCertificateProvided { // after a redirection
		config.ServerName = c.host
	}
	config.DynamicRecordSizingDisabled = true // SQL Server needs each packet in one record
	if protocol != "" {
		config.NextProtos = []string{protocol}
	}
	out := tls.Client(raw, config)
	if err := out.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("TLS Handshake failed: %w", err)
	}
	return out, nil
}

// handshake is a connection whose data are wrapped in packets, until end is called.
type handshake struct {
	net.Conn
	out   []byte // written, but not sent
	left  int    // unread bytes of the packet
	ended bool
}

// Write implements net.Conn. During the handshake, it only buffers the bytes, because SQL Server requires all TLS
// records of a handshake step in one message. The next call of Read or end sends them.
func (h *handshake) Write(p []byte) (int, error) {
	if h.ended {
		return h.Conn.Write(p)
	}
	h.out = append(h.out, p...)
	return len(p), nil
}

// flush sends what was written.
func (h *handshake) flush() error {
	const most = 4096 - headerSize
	for number := byte(1); len(h.out) > 0; number++ {
		part := h.out[:min(len(h.out), most)]
		h.out = h.out[len(part):]
		p := []byte{packetPrelogin, 0, 0, 0, 0, 0, number, 0}
		if len(h.out) == 0 {
			p[1] = 1
		}
		binary.BigEndian.PutUint16(p[2:], uint16(headerSize+len(part))) //nolint:gosec // at most 4096
		if _, err := h.Conn.Write(append(p, part...)); err != nil {
			return err
		}
	}
	return nil
}

// end sends what was written, and ends the wrapping.
func (h *handshake) end() error {
	h.ended = true
	return h.flush()
}

// Read implements net.Conn.
func (h *handshake) Read(p []byte) (int, error) {
	if h.ended {
		return h.Conn.Read(p)
	}
	if err := h.flush(); err != nil {
		return 0, err
	}
	if h.left == 0 {
		var header [headerSize]byte
		if _, err := io.ReadFull(h.Conn, header[:]); err != nil {
			return 0, err
		}
		h.left = int(binary.BigEndian.Uint16(header[2:])) - headerSize
		if header[0] != packetPrelogin && header[0] != packetAnswer || h.left <= 0 {
			return 0, errors.New("SQL Server does not wrap the TLS handshake as it should")
		}
	}
	n, err := h.Conn.Read(p[:min(len(p), h.left)])
	h.left -= n
	return n, err
}
