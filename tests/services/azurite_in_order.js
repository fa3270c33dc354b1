// Azure lists blobs, and prefixes in front of a delimiter, in one alphabetical order; Azurite gives all prefixes first
// (its issue 321). By that order Spark's connector takes a folder and the blob that marks it for one. Loaded into Azurite
// by NODE_OPTIONS.
"use strict";
const { ServerResponse } = require("http");

const nameOf = (entry) => /<Name[^>]*>(.*?)<\/Name>/s.exec(entry)[1];

function inOrder(chunk) {
  const text = Buffer.isBuffer(chunk) ? chunk.toString("utf8") : chunk;
  if (typeof text !== "string" || !text.includes("<EnumerationResults")) return chunk;
  return text.replace(/<Blobs>(.*)<\/Blobs>/s, (_, entries) => {
    const found = entries.match(/<(BlobPrefix|Blob)>.*?<\/\1>/gs) || [];
    found.sort((a, b) => Buffer.compare(Buffer.from(nameOf(a)), Buffer.from(nameOf(b))));
    return `<Blobs>${found.join("")}</Blobs>`;
  });
}

for (const method of ["write", "end"]) {
  const plain = ServerResponse.prototype[method];
  ServerResponse.prototype[method] = function (chunk, ...others) {
    return plain.call(this, inOrder(chunk), ...others);
  };
}
