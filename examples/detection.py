"""Object detection with a small YOLOS of transformers: one loss per image, from what its queries were matched with."""

import argparse

import torch
from transformers import YolosConfig, YolosForObjectDetection
from transformers.image_transforms import center_to_corners_format
from transformers.loss.loss_for_object_detection import HungarianMatcher, box_iou

import infobatch
from infobatch.adapters import set_prediction_loss

SIZE, BATCH = 32, 16


def make(count):
    """Return pairs (image, label): noise with up to two rectangles, and their classes and boxes as (center, size)."""
    draw, pairs = torch.Generator().manual_seed(0), []
    for image in 0.2 * torch.randn(count, 3, SIZE, SIZE, generator=draw):
        kinds = torch.randint(2, torch.randint(3, (1,), generator=draw).tolist(), generator=draw)
        sizes = torch.randint(8, 17, (len(kinds), 2), generator=draw)
        corners = (torch.rand(len(kinds), 2, generator=draw) * (SIZE - sizes)).long()
        for kind, (x, y), (width, height) in zip(kinds, corners, sizes, strict=True):
            image[kind, y : y + height, x : x + width] += 1
        pairs.append((image, {"class_labels": kinds, "boxes": torch.cat([corners + sizes / 2, sizes], 1) / SIZE}))
    return pairs


def collate(pairs):
    return torch.stack([image for image, _ in pairs]), [label for _, label in pairs]


def make_model():
    config = {"image_size": [SIZE, SIZE], "patch_size": 8, "hidden_size": 64, "num_hidden_layers": 3}
    config |= {"num_attention_heads": 4, "intermediate_size": 128, "num_detection_tokens": 5, "num_labels": 2}
    model = YolosForObjectDetection(YolosConfig(**config, use_mid_position_embeddings=False))
    for name, parameter in model.named_parameters():  # larger weights than usual, as the model is small
        if "token" in name or "position" in name:
            torch.nn.init.normal_(parameter, std=0.5)
        elif parameter.ndim > 1:
            torch.nn.init.xavier_uniform_(parameter.flatten(1))
    return model, HungarianMatcher(model.config.class_cost, model.config.bbox_cost, model.config.giou_cost)


def train_once(method):
    """Return the share of the samples saved, and of the objects found with their class and an IoU above 0.5."""
    torch.manual_seed(0)
    model, matcher = make_model()
    train_data = infobatch.Pruned(pairs[len(pairs) // 5 :], method, options.epochs)
    steps = infobatch.full_steps(train_data, BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    one_cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=options.epochs * steps)
    scheduler = infobatch.pace(one_cycle, train_data, steps)
    for _ in range(options.epochs):
        for x, labels in infobatch.DataLoader(train_data, batch_size=BATCH, collate_fn=collate):
            out = model(x)
            loss, score = set_prediction_loss([out], labels, [matcher(out, labels)])  # its mean: model(x, labels).loss
            optimizer.zero_grad()
            train_data.update(loss, score=score).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
    x, labels = collate(pairs[: len(pairs) // 5])
    with torch.no_grad():
        out = model.eval()(x)
    found = []
    for image, (label, (query, target)) in enumerate(zip(labels, matcher(out, labels), strict=True)):
        boxes = (center_to_corners_format(one) for one in (out.pred_boxes[image, query], label["boxes"][target]))
        is_right = out.logits[image, query].argmax(1) == label["class_labels"][target]
        found.append(is_right & (box_iou(*boxes)[0].diag() > 0.5))
    return train_data.history[-1].saved_so_far, torch.cat(found).double().mean().item()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--samples", type=int, default=800, help="images that are made (default 800)")
parser.add_argument("--epochs", type=int, default=16, help="epochs of each run, 8 or more (default 16)")
options = parser.parse_args()
pairs = make(options.samples)
for name, method in {"full data": infobatch.methods.full(), "InfoBatch": infobatch.methods.infobatch()}.items():
    print("{:9}  {:5.1%} of the samples saved, {:.1%} of the objects found".format(name, *train_once(method)))
