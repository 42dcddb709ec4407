// Package jsonbody decodes the JSON bodies of requests to the state API, and appends the JSON bodies of answers. The
// package owns the format of these bodies. It does not depend on connections or stores.
//
// A caller first counts the parts of a body with a Tally. It then reserves as much memory as Tally.Memory returns, and
// decodes the body.
package jsonbody
