package tracing

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"strconv"
	"strings"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/userfile"
)

const (
	maxHeader     = 64 << 10 // bytes of the header of an answer of the collector
	exportTimeout = 10 * time.Second
)

// collectorClient returns an HTTP client that limits the header of an answer to maxHeader bytes. The client also
// applies the environment variables for certificates and for the timeout, because the OTLP library applies them only to
// its own client.
func (d *Declared) collectorClient(env func(string) (string, bool)) (*http.Client, error) {
	config, err := collectorTLS(env)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig, transport.MaxResponseHeaderBytes = config, maxHeader
	timeout := d.Timeout
	if timeout <= 0 {
		timeout = exportTimeout
		if n, err := strconv.Atoi(variable(env, "TIMEOUT")); err == nil && n > 0 {
			timeout = time.Duration(n) * time.Millisecond
		}
	}
	return &http.Client{Transport: transport, Timeout: timeout}, nil
}

// variable returns the value of an OTLP environment variable. name is the last part of the variable's name. For
// example, "TIMEOUT" gives OTEL_EXPORTER_OTLP_TRACES_TIMEOUT or, if this is not set, OTEL_EXPORTER_OTLP_TIMEOUT.
func variable(env func(string) (string, bool), name string) string {
	for _, prefix := range []string{"OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"} {
		if v, _ := env(prefix + name); strings.TrimSpace(v) != "" {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// collectorTLS returns the TLS settings for a collector, from the environment variables. It returns fault.Invalid if a
// certificate or key file cannot be used.
func collectorTLS(env func(string) (string, bool)) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	invalid := func(name string, err error) error {
		return &fault.Error{Code: fault.Invalid, Op: "tracing.Open",
			Msg:  "the file of OTEL_EXPORTER_OTLP_" + name + " cannot be used",
			Hint: "give the path of a file in PEM form", Err: err}
	}
	if file := variable(env, "CERTIFICATE"); file != "" {
		text, err := userfile.Read(file)
		config.RootCAs = x509.NewCertPool()
		if err != nil || !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, invalid("CERTIFICATE", err)
		}
	}
	cert, key := variable(env, "CLIENT_CERTIFICATE"), variable(env, "CLIENT_KEY")
	if cert != "" && key != "" {
		pair, err := readPair(cert, key)
		if err != nil {
			return nil, invalid("CLIENT_CERTIFICATE or OTEL_EXPORTER_OTLP_CLIENT_KEY", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// ending is an exporter whose Shutdown also closes the idle connections of its HTTP client.
type ending struct {
	sdktrace.SpanExporter
	client *http.Client
}

// Shutdown implements sdktrace.SpanExporter.
func (e ending) Shutdown(ctx context.Context) error {
	defer e.client.CloseIdleConnections()
	return e.SpanExporter.Shutdown(ctx)
}

// readPair reads a certificate and its key.
func readPair(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := userfile.Read(certFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := userfile.Read(keyFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}
